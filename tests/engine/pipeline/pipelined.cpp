#include "engine/pipeline/pipelined.h"

#include "support/catch.h"

namespace dp::test {

Trained train(const Model& model, const DataParallelOptions& options, std::int64_t rows) {
  DataParallel net(model, options);
  for (std::uint64_t step = 0; step < 5; ++step)
    net.train_step(random_batch(model, step % 2 == 0 ? rows : (rows + 1) / 2, step),
                   Sgd{.lr = 0.05f, .momentum = 0.9f, .weight_decay = 1e-3f});
  Trained trained{net.weights(), net.take_stats()};
  CHECK(net.replicas_identical());
  const auto add = [&](const std::vector<NamedTensor>& tensors) {
    trained.state.insert(trained.state.end(), tensors.begin(), tensors.end());
  };
  add(net.optimizer_state().tensors);
  add(net.gradients());
  if (options.ema_decay) add(net.average_weights());
  return trained;
}

void check_same(const Trained& one, const Trained& other) {
  CHECK(bit_equal(one.state, other.state));
  CHECK(one.stats.samples == other.stats.samples);
  CHECK(one.stats.top1 == other.stats.top1);
  CHECK(one.stats.loss_sum == other.stats.loss_sum);
  CHECK(one.stats.grad_norm == other.stats.grad_norm);
  CHECK(one.stats.skipped == other.stats.skipped);
}

DataParallelOptions pipelined(DataParallelOptions options, const Layout& layout, PipelineSchedule schedule) {
  options.devices.assign(static_cast<std::size_t>(layout.replicas * layout.stages), options.devices.front());
  options.pipeline.stages = layout.stages;
  options.pipeline.micro_batches = layout.micro_batches;
  options.pipeline.schedule = schedule;
  return options;
}

DataParallelOptions accumulating(DataParallelOptions options, const Layout& layout) {
  options.devices.assign(static_cast<std::size_t>(layout.replicas), options.devices.front());
  options.grad_accum_steps = layout.micro_batches;
  options.pipeline = {};
  return options;
}

void check_schedules(const Model& model, const DataParallelOptions& options, const Layout& layout, std::int64_t rows,
                     const std::vector<PipelineSchedule>& schedules) {
  const Trained expected = train(model, accumulating(options, layout), rows);
  for (const PipelineSchedule schedule : schedules) {
    INFO(model.name() << ", " << layout.replicas << " replicas of " << layout.stages << " stages, "
                      << layout.micro_batches << " micro-batches, schedule " << static_cast<int>(schedule));
    check_same(train(model, pipelined(options, layout, schedule), rows), expected);
  }
}

void check_logical_shards(BatchNormMode mode, std::int64_t rows, const std::vector<Layout>& layouts,
                          const std::vector<PipelineSchedule>& schedules) {
  const Model model = residual_net(/*relu=*/true, /*dropout=*/true);
  DataParallelOptions options = on_cpus(1);
  options.logical_shards = 8;
  options.batch_norm = mode;
  options.clip_grad_norm = 0.1;
  const Trained expected = train(model, options, rows);
  for (const Layout& layout : layouts)
    for (const PipelineSchedule schedule : schedules) {
      if (layout.stages == 1 && schedule != schedules.front()) continue;  // has no schedule
      INFO(layout.replicas << " replicas of " << layout.stages << " stages, schedule " << static_cast<int>(schedule)
                           << ", mode " << static_cast<int>(mode) << ", " << rows << " rows");
      Trained trained = train(model, pipelined(options, layout, schedule), rows);
      // The order in which the losses are summed depends on the number of replicas.
      CHECK(trained.stats.loss_sum == Approx(expected.stats.loss_sum).epsilon(1e-12));
      trained.stats.loss_sum = expected.stats.loss_sum;
      check_same(trained, expected);
    }
}

}  // namespace dp::test
