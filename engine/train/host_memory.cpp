#include "engine/train/host_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "dp/default_devices.h"
#include "dp/error.h"
#include "engine/optimizer/optimizer.h"
#include "engine/parallel/resolved_options.h"
#include "engine/replica/memory_room.h"
#include "engine/train/passes.h"

namespace dp {

// One copy of the weights for their digest. A run that saves copies weights and optimizer state for a checkpoint. One
// more assembles a slot of the state on the CPU, and one more holds a moving average.
std::size_t bytes_of_copies(const Model& model, const TrainerOptions& options, bool training) {
  const bool saves = training && !options.output_dir.empty() && !options.dry_run;
  const auto& devices = options.parallel.devices;
  const bool on_host = devices.empty() || devices.front().kind != DeviceKind::cuda;
  const engine::UpdateKind update = engine::kind_of(options.optimizer);
  const auto slots = static_cast<unsigned>(update.state ? kernels::slots_of(update.rule) : 0);
  const std::size_t copies = saves ? 1u + slots + on_host + options.parallel.ema_decay.has_value() : 1u;
  return copies * static_cast<std::size_t>(model.parameter_count()) * sizeof(float);
}

namespace {

class Run {
 public:
  Run(const Model& model, const DatasetPair& data, const TrainerOptions& options, bool training)
      : model_(model), data_(data), options_(options), training_(training) {
    if (options_.parallel.devices.empty()) options_.parallel.devices = default_devices();
    on_host_ = options_.parallel.devices.front().kind != DeviceKind::cuda;
  }

  std::int64_t batch() const { return options_.batch_size; }
  int replicas() const { return ranks_of(options_.parallel); }
  Run with(std::int64_t batch, int replicas) const {
    Run other = *this;
    other.options_.batch_size = batch;
    if (replicas == this->replicas()) return other;
    DataParallelOptions& parallel = other.options_.parallel;
    parallel.devices.resize(static_cast<std::size_t>(replicas * parallel.pipeline.stages));
    parallel.split_weights.clear();
    if (parallel.logical_shards % replicas != 0) parallel.logical_shards = replicas;
    return other;
  }

  // Bytes of the CPU replicas; 0 on GPUs.
  std::size_t of_replicas() const {
    if (!on_host_) return 0;
    std::vector<std::int64_t> train;
    if (training_) train.push_back(rows(*data_.train, options_.batch_size));
    std::size_t bytes = 0;
    for (const MemoryUse& use : estimate_memory(model_, options_.parallel, train, {eval_rows()}, options_.optimizer))
      bytes += resident_bytes(use, options_.parallel);
    return bytes;
  }

  // Bytes of the image batches that both loaders fill; 0 with device-resident data sets.
  std::size_t of_loaders() const {
    const bool resident =
        options_.images_on == ImagesOn::device || (options_.images_on == ImagesOn::automatic && !on_host_);
    if (resident) return 0;
    return slots(*data_.test, eval_rows()) + (training_ ? slots(*data_.train, options_.batch_size) : 0);
  }

  // A lower bound. Stacks, generated code and small buffers add about 30 MiB, and up to 1 MiB per replica.
  std::size_t bytes() const { return of_replicas() + of_loaders() + bytes_of_copies(model_, options_, training_); }

 private:
  static std::int64_t rows(const Dataset& part, std::int64_t batch) { return std::min(batch, part.size()); }
  std::int64_t eval_rows() const { return rows(*data_.test, eval_batch_size(options_)); }
  static std::size_t slots(const Dataset& part, std::int64_t batch) {
    const std::int64_t own = rows(part, batch), batches = (part.size() + own - 1) / own;
    const std::int64_t filled = std::min<std::int64_t>(LoaderOptions{}.slots, batches);
    return static_cast<std::size_t>(filled * own * part.image_shape().numel()) * sizeof(float);
  }

  const Model& model_;
  const DatasetPair& data_;
  TrainerOptions options_;
  const bool training_;
  bool on_host_ = true;
};

// The largest value in [1, limit) for which `good` holds, to within 1/64; 0 if there is none.
template <typename Good>
std::int64_t largest(std::int64_t limit, Good&& good) {
  std::int64_t low = 0, high = limit;
  while (high - low > std::max<std::int64_t>(1, low / 64)) {
    const std::int64_t middle = low + (high - low) / 2;
    (good(middle) ? low : high) = middle;
  }
  return low;
}

std::string what_fits(const Run& run, std::size_t free) {
  const std::size_t room = engine::promised(free);
  const auto batch = largest(run.batch(), [&](std::int64_t b) { return run.with(b, run.replicas()).bytes() <= room; });
  if (batch >= run.replicas()) return fmt::format("a batch of {} fits", batch);
  const auto replicas = largest(
      run.replicas(), [&](std::int64_t n) { return run.with(run.batch(), static_cast<int>(n)).bytes() <= room; });
  if (replicas > 0) return fmt::format("{} replica{} with this batch fit", replicas, replicas == 1 ? "" : "s");
  if (batch > 0) return fmt::format("a batch of {} fits", batch);
  return "no batch fits on any number of replicas: use a smaller model";
}

}  // namespace

// Rounds up only kinds with one buffer. Kinds with several small buffers count with their exact size.
std::size_t resident_bytes(const MemoryUse& use, const DataParallelOptions& options) {
  const bool one_for_gradients = options.reduce_dtype == DType::f32;
  std::size_t bytes = use.statistics + use.average + use.other + (one_for_gradients ? 0 : use.gradients);
  for (const std::size_t buffer :
       {use.weights, one_for_gradients ? use.gradients : 0, use.optimizer, use.activations + use.workspace})
    bytes += engine::taken_on(Device{}, buffer);
  return bytes;
}

void require_memory_beyond(std::size_t held, const Model& model, const DatasetPair& data, const TrainerOptions& options,
                           bool training) {
  if (options.parallel.process_group) return;
  const auto host = engine::room_on(Device{});
  if (!host) return;
  const std::size_t room = host->bytes + held;
  const Run run(model, data, options, training);
  const std::size_t replicas = run.of_replicas(), all = run.bytes();
  if (all <= room) return;
  throw Error(ErrorCode::device,
              fmt::format("out of memory: a batch of {} on {} replica{} needs {} ({} for the replicas), but {} are "
                          "available ({}); {}",
                          run.batch(), run.replicas(), run.replicas() == 1 ? "" : "s", engine::in_units(all),
                          engine::in_units(replicas), engine::in_units(room), host->limit, what_fits(run, room)));
}

void require_memory(const Model& model, const DatasetPair& data, const TrainerOptions& options, bool training) {
  require_memory_beyond(0, model, data, options, training);
}

}  // namespace dp
