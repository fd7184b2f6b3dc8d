// All combinations of what pipeline_test.cpp samples.
#include "dp/models.h"
#include "engine/pipeline/pipelined.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::test;

TEST_CASE("pipeline: any number of replicas, stages and micro-batches gives the bits of one device per replica") {
  for (const int replicas : {1, 2, 3})
    for (const int stages : {2, 3, 4})
      for (const int micro_batches : {1, 2, 3, 7})
        check_schedules(small_convnet(/*dropout=*/true), on_cpus(1), {replicas, stages, micro_batches},
                        /*rows=*/11 * replicas);
}

TEST_CASE("pipeline: every schedule with every mode of batch normalisation and reduction, clipped or not") {
  const Model model = residual_net(/*relu=*/true, /*dropout=*/true);
  for (const BatchNormMode mode : {BatchNormMode::master, BatchNormMode::pooled, BatchNormMode::sync})
    for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded})
      for (const bool clip : {false, true}) {
        DataParallelOptions options = on_cpus(1);
        options.batch_norm = mode;
        options.reduce = reduce;
        if (clip) options.clip_grad_norm = 0.05;
        INFO("mode " << static_cast<int>(mode) << ", reduce " << static_cast<int>(reduce) << ", clip " << clip);
        check_schedules(model, options, {2, 3, 4}, 23);
      }
}

TEST_CASE("pipeline: every schedule of narrow resnet18 and resnet50") {
  const auto narrow = models::ResnetOptions{.classes = 10, .input = {3, 16, 16}, .width = 4};
  for (const Model& model : {models::resnet18(narrow), models::resnet50(narrow)})
    for (const int stages : {2, 4}) check_schedules(model, on_cpus(1), {1, stages, 4}, 9);
}

TEST_CASE("pipeline: with eight logical shards every layout has the same bits") {
  for (const BatchNormMode mode : {BatchNormMode::master, BatchNormMode::pooled})
    for (const std::int64_t rows : {29, 5})
      check_logical_shards(mode, rows, {{1, 2, 8}, {2, 2, 4}, {4, 1, 0}, {4, 2, 2}, {1, 4, 0}, {2, 4, 0}},
                           {one_at_a_time, gpipe, one_f_one_b, zero_bubble});
}

TEST_CASE("pipeline: every schedule but zb-h1 with every recomputation and mode of batch normalisation") {
  const Model model = residual_net(/*relu=*/true, /*dropout=*/true);
  for (const Recompute recompute : {Recompute::stage, Recompute::except_last})
    for (const BatchNormMode mode : {BatchNormMode::master, BatchNormMode::pooled, BatchNormMode::sync}) {
      DataParallelOptions options = on_cpus(1);
      options.batch_norm = mode;
      options.clip_grad_norm = 0.05;
      options.pipeline.recompute = recompute;
      INFO("recompute " << static_cast<int>(recompute) << ", mode " << static_cast<int>(mode));
      check_schedules(model, options, {2, 3, 4}, 23, {one_at_a_time, gpipe, one_f_one_b});
    }
}
