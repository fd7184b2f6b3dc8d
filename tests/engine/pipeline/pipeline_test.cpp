// A pipeline computes the bits of the same micro-batches on one device per replica. pipeline_slow_test.cpp has more
// combinations.
#include "dp/models.h"
#include "engine/pipeline/pipelined.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::test;

namespace {

// Checks the schedules one after another, one in each call.
void check_next_schedule(const Model& model, const DataParallelOptions& options, const Layout& layout,
                         std::int64_t rows) {
  static std::size_t number = 0;
  check_schedules(model, options, layout, rows, {kSchedules[number++ % std::size(kSchedules)]});
}

}  // namespace

TEST_CASE("pipeline: replicas, stages, micro-batches and schedules give the bits of one device per replica") {
  for (const Layout& layout : {Layout{1, 2, 1}, {1, 4, 7}, {2, 2, 3}, {3, 2, 2}})
    check_schedules(small_convnet(/*dropout=*/true), on_cpus(1), layout, /*rows=*/7 * layout.replicas);
}

TEST_CASE("pipeline: residual blocks and every mode of batch normalisation and reduction give the same bits") {
  const Model model = residual_net(/*relu=*/true, /*dropout=*/true);
  for (const BatchNormMode mode : {BatchNormMode::master, BatchNormMode::pooled, BatchNormMode::sync})
    for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded}) {
      if (mode != BatchNormMode::pooled && reduce != Reduce::sharded) continue;  // saves time
      DataParallelOptions options = on_cpus(1);
      options.batch_norm = mode;
      options.reduce = reduce;
      INFO("mode " << static_cast<int>(mode) << ", reduce " << static_cast<int>(reduce));
      check_next_schedule(model, options, {2, 2, 3}, 11);
    }
}

TEST_CASE("pipeline: clipping, skipped steps, an average and parameter groups give the same bits") {
  const Model model = residual_net();
  for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded}) {
    DataParallelOptions options = on_cpus(1);
    options.reduce = reduce;
    options.ema_decay = 0.9;
    options.label_smoothing = 0.1f;
    options.parameter_groups = {{.pattern = "a.*", .frozen = true}, {.vectors = true, .weight_decay = 0.0f}};
    options.clip_grad_norm = 0.05;
    check_next_schedule(model, options, {2, 2, 3}, 11);
    options.clip_grad_norm.reset();
    options.on_nonfinite = OnNonfinite::skip;
    check_next_schedule(model, options, {1, 3, 4}, 7);
  }
}

TEST_CASE("pipeline: narrow resnet18 and resnet50 give the same bits") {
  const auto narrow = models::ResnetOptions{.classes = 10, .input = {3, 16, 16}, .width = 4};
  check_next_schedule(models::resnet18(narrow), on_cpus(1), {1, 4, 3}, 5);
  check_next_schedule(models::resnet50(narrow), on_cpus(1), {1, 2, 3}, 5);
}

TEST_CASE("pipeline: the float64 reference gives the same bits") {
  check_next_schedule(residual_net(), on_reference(), {2, 3, 3}, 7);
}

TEST_CASE("pipeline: with logical shards, replicas times micro-batches decide, and nothing else does") {
  for (const BatchNormMode mode : {BatchNormMode::master, BatchNormMode::pooled})
    check_logical_shards(mode, /*rows=*/mode == BatchNormMode::master ? 13 : 5, {{1, 2, 8}, {2, 2, 4}, {4, 1, 0}},
                         {one_f_one_b, zero_bubble});
}

TEST_CASE("pipeline: every cut gives the same bits") {
  const Model model = residual_net();
  const Trained expected = train(model, accumulating(on_cpus(1), {1, 2, 3}), 7);
  for (const char* cut : {"a", "b", "c", "fc"}) {
    DataParallelOptions options = pipelined(on_cpus(1), {1, 2, 3}, one_f_one_b);
    options.pipeline.cuts = {cut};
    INFO(cut);
    check_same(train(model, options, 7), expected);
  }
}

TEST_CASE("pipeline: activations that are computed a second time give the same bits") {
  const Model model = residual_net(/*relu=*/true, /*dropout=*/true);
  for (const Recompute recompute : {Recompute::stage, Recompute::except_last})
    for (const BatchNormMode mode : {BatchNormMode::master, BatchNormMode::pooled, BatchNormMode::sync}) {
      if (recompute == Recompute::except_last && mode != BatchNormMode::pooled) continue;  // saves time
      DataParallelOptions options = on_cpus(1);
      options.batch_norm = mode;
      options.pipeline.recompute = recompute;
      INFO("recompute " << static_cast<int>(recompute) << ", mode " << static_cast<int>(mode));
      check_schedules(model, options, {2, 2, 3}, 11, {gpipe, one_f_one_b});
    }
}
