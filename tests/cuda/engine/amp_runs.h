// Mixed-precision runs, shared by fast and slow tests that use different networks.
#pragma once

#include "cuda/engine/graph_runs.h"
#include "cuda/simulated_gpus.h"
#include "support/sanitized.h"

namespace dp::test {

// float16 also scales the loss.
inline const std::vector<Amp> kAmpTypes = cases<Amp>({Amp::bfloat16, Amp::float16}, {Amp::float16});

inline const char* name_of(Amp amp) {
  return amp == Amp::bfloat16 ? "bfloat16" : amp == Amp::float16 ? "float16" : "off";
}

inline DataParallelOptions with(DataParallelOptions options, Amp amp) {
  options.amp = amp;
  options.dropout = false;
  return options;
}

// Two residual blocks with a number of channels that tensor cores support.
inline Model two_blocks(std::int64_t width = 8) {
  ModelBuilder m("two_blocks", Shape{3, 8, 8});
  const auto conv = [&](const std::string& name, ModelBuilder::Node x, std::int64_t channels, int kernel, int stride) {
    x = m.conv2d(name, x,
                 {.out_channels = channels, .kernel = kernel, .stride = stride, .padding = kernel / 2, .bias = false});
    return m.batch_norm2d(name + ".bn", x);
  };
  auto x = m.relu(conv("conv1", m.input(), width, 3, 1));
  x = m.relu(m.add(conv("a.conv2", m.relu(conv("a.conv1", x, width, 3, 1)), width, 3, 1), x));
  const auto shortcut = conv("b.downsample", x, 2 * width, 1, 2);
  x = m.relu(m.add(conv("b.conv2", m.relu(conv("b.conv1", x, 2 * width, 3, 2)), 2 * width, 3, 1), shortcut));
  return m.build(m.linear("fc", m.flatten(m.global_avg_pool2d(x)), {.out_features = 10}));
}

// With a weight average, each step gathers all weights in float32. Without it, weights are gathered in the type that
// the layers read.
inline void check_weights_in_16_bits(const Model& model, Amp amp, int gpus, std::int64_t bucket_bytes) {
  INFO(name_of(amp) << " on " << gpus);
  SimulatedGpus machine(gpus);
  simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
  DataParallelOptions options = with(on_gpus(gpus, gpus), amp);
  options.reduce = Reduce::sharded;
  options.bucket_bytes = bucket_bytes;
  const Course low = course_of(model, options, true);
  options.ema_decay = 0.9;
  Course whole = course_of(model, options, true);
  CHECK(!whole.average.empty());
  whole.average.clear();
  CHECK(low == whole);
}

// Five steps with four logical shards and synchronised statistics.
inline std::vector<NamedTensor> sharded_steps(const Model& model, Amp amp, int gpus) {
  SimulatedGpus machine(gpus);
  simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
  simt::simulation().order = gpus == 2 ? simt::ThreadOrder::random : simt::ThreadOrder::forward;
  DataParallelOptions options = on_gpus(gpus, gpus);
  options.amp = amp;
  options.loss_scale.initial = 512;
  options.logical_shards = 4;
  options.batch_norm = BatchNormMode::sync;
  return five_steps(model, options, 9);
}

// A step of a residual network in mixed precision: the launches of the graph and of the eager step are equal.
inline void check_launches_of_residual(const Model& model, Amp amp, BatchNormMode mode) {
  SimulatedGpus machine(2);
  simt::simulation().protect_memory = false;  // faster
  DataParallelOptions options = on_gpus(2, 2);
  options.amp = amp;
  options.batch_norm = mode;
  options.clip_grad_norm = 0.5;
  if (amp == Amp::off)
    options.logical_shards = 4;
  else if (mode == BatchNormMode::master)
    options.grad_accum_steps = 2;
  INFO("amp " << name_of(amp) << ", batch normalisation " << static_cast<int>(mode));
  const auto eager = launches_of_steps(model, options, false), graphs = launches_of_steps(model, options, true);
  std::size_t launches = 0;
  for (const auto& [stream, of_stream] : eager) launches += of_stream.size();
  CHECK(launches > 400);
  CHECK(eager == graphs);
}

}  // namespace dp::test
