#include "engine/train/host_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/augment/policies.h"
#include "dp/default_devices.h"
#include "dp/error.h"
#include "engine/layers/parameters.h"
#include "engine/optimizer/optimizer.h"
#include "engine/step/memory/memory_room.h"
#include "engine/step/resolved_options.h"
#include "engine/train/passes.h"
#include "engine/train/report/predictions.h"
#include "engine/train/start.h"

namespace dp {

namespace {

std::size_t taken(std::size_t bytes) { return engine::occupied_bytes(Device{}, bytes); }

bool saves(const TrainerOptions& options, bool training) {
  return training && !options.output_dir.empty() && !options.dry_run;
}

}  // namespace

std::size_t checkpoint_bytes(const Model& model, const TrainerOptions& options) {
  const auto slots = static_cast<std::size_t>(engine::kind_of(options.optimizer).slot_count());
  const std::size_t copies = 1 + slots + (options.parallel.ema_decay ? 1 : 0);
  return copies * static_cast<std::size_t>(model.parameter_count()) * sizeof(float);
}

// Every run copies the weights once, to compute their digest. A run that saves keeps a copy of its state between saves.
// A tensor of the optimizer's state may be in several buckets or replicas; on CPUs a buffer holds it while it is put
// together. A small network on one replica has a single bucket.
std::size_t bytes_of_copies(const Model& model, const TrainerOptions& options, bool training) {
  const auto& devices = options.parallel.devices;
  const bool on_host = devices.empty() || devices.front().kind != DeviceKind::cuda;
  const std::size_t bytes = static_cast<std::size_t>(model.parameter_count()) * sizeof(float);
  if (!saves(options, training)) return bytes;
  std::size_t largest = 0;
  for (const ParameterSpec& parameter : model.parameters())
    largest = std::max(largest, static_cast<std::size_t>(parameter.shape.numel()) * sizeof(float));
  const std::size_t set = options.parallel.bucket_bytes;
  const bool several = devices.size() > 1 || bytes > (set != 0 ? set : engine::default_bucket_bytes(bytes));
  const bool assembles = on_host && several && engine::kind_of(options.optimizer).slot_count() > 0;
  return checkpoint_bytes(model, options) + (assembles ? taken(largest) : 0);
}

namespace {

class PlannedRun {
 public:
  PlannedRun(const Model& model, const DatasetPair& data, const TrainerOptions& options, bool training)
      : model_(model), data_(data), options_(options), training_(training) {
    options_.parallel = parallel_options(options);
    if (options_.parallel.devices.empty()) options_.parallel.devices = default_devices();
    on_host_ = options_.parallel.devices.front().kind != DeviceKind::cuda;
  }

  std::int64_t batch() const { return options_.batch_size; }
  int replicas() const { return ranks_of(options_.parallel); }
  PlannedRun with(std::int64_t batch, int replicas) const {
    PlannedRun other = *this;
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
    // A short last batch of an epoch has its own plan and, in an evaluation, its own folded weights.
    const auto sizes = [](const Dataset& part, std::int64_t rows, bool drops) {
      std::vector<std::int64_t> all{rows};
      if (const std::int64_t last = part.size() % rows; last != 0 && !drops) all.push_back(last);
      return all;
    };
    std::vector<std::int64_t> train;
    if (training_) train = sizes(*data_.train, rows(*data_.train, options_.batch_size), options_.drop_last);
    std::size_t bytes = 0;
    for (const MemoryUse& use :
         estimate_memory(model_, options_.parallel, train, sizes(*data_.test, eval_rows(), false), options_.optimizer))
      bytes += resident_bytes(use, options_.parallel);
    return bytes;
  }

  // Bytes of both loaders: the image batches that they fill, unless the data sets are device-resident, the order of the
  // samples, buffers for an image and its decoding for each thread, and images that the data sets cache.
  std::size_t of_loaders() const {
    const Augmentation augmentation =
        training_ && options_.augment ? changed(data_.train->augmentation(), options_.augmentation) : Augmentation{};
    const bool resident =
        options_.images_on == ImagesOn::device ||
        (options_.images_on == ImagesOn::automatic && !on_host_ && option_of_host(augmentation, options_).empty());
    const bool views = options_.test_augmentation != TestAugmentation::none;
    const auto view = static_cast<std::size_t>(views ? eval_rows() * model_.input().numel() : 0) * sizeof(float);
    return of_loader(*data_.test, {}, eval_rows(), resident && !views) + view +
           (training_ ? of_loader(*data_.train, augmentation, options_.batch_size, resident) : 0);
  }

  // Bytes of the logits of an evaluation: on the replicas, and gathered for the report.
  std::size_t of_records() const {
    const std::int64_t classes = model_.output().numel();
    if (!saves(options_, training_) || classes > kMostClasses) return 0;
    const auto logits = static_cast<std::size_t>(data_.test->size() * classes) * sizeof(float);
    return on_host_ ? 2 * logits : logits;
  }

  // A thread that works touches 64 KiB of its stack and its thread-local memory. The thread of a replica also has an
  // arena of the allocator, with the plans of that replica. Both are measured: bytes of plans follow from libraries.
  std::size_t of_threads() const {
    const int each = std::max(options_.parallel.threads_per_replica, 1), others = std::max(options_.workers, 1) * 2;
    const auto devices = on_host_ ? options_.parallel.devices.size() : 0;
    return (devices * static_cast<std::size_t>(each) + static_cast<std::size_t>(others)) * (std::size_t{64} << 10) +
           (devices > 1 ? devices - 1 : 0) * (std::size_t{512} << 10);
  }

  HostMemory parts() const {
    HostMemory parts;
    parts.replicas = of_replicas();
    parts.loaders = of_loaders(), parts.copies = bytes_of_copies(model_, options_, training_),
    parts.records = of_records();
    parts.threads = of_threads();
    parts.code = kCode;
    return parts;
  }
  std::size_t bytes() const { return parts().total(); }  // without `process`

 private:
  // Measured, because the pages of code that a run will touch are not known beforehand. With oneDNN 2.6, mapped files
  // take 16 MiB after planning and 19 to 21 MiB at the end of a run. In its first steps oneDNN also generates 3 MiB of
  // code for matrix products and reorders.
  static constexpr std::size_t kCode = std::size_t{8} << 20;

  static std::int64_t rows(const Dataset& part, std::int64_t batch) { return std::min(batch, part.size()); }
  std::int64_t eval_rows() const { return rows(*data_.test, eval_batch_size(options_)); }
  std::size_t of_loader(const Dataset& part, const Augmentation& augmentation, std::int64_t batch,
                        bool resident) const {
    const std::int64_t own = rows(part, batch), batches = (part.size() + own - 1) / own;
    const std::int64_t slots = std::clamp<std::int64_t>(batches, 3, LoaderOptions{}.slots);
    const auto image = static_cast<std::size_t>(part.image_shape().numel());
    const bool has_targets = options_.parallel.soft_targets || part.has_targets();
    const std::size_t targets = has_targets ? static_cast<std::size_t>(model_.output().numel()) : 0;
    return static_cast<std::size_t>(slots * own) * ((resident ? 0 : image) + targets) * sizeof(float) +
           static_cast<std::size_t>(std::max(options_.workers, 1)) *
               (scratch_bytes(augmentation, part.image_shape().numel()) + part.bytes_to_read()) +
           static_cast<std::size_t>(part.size()) * sizeof(std::int64_t) + part.bytes_to_cache();
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

std::string what_fits(const PlannedRun& run, std::size_t free) {
  const std::size_t room = engine::usable_part(free);
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
    bytes += engine::occupied_bytes(Device{}, buffer);
  return bytes;
}

HostMemory estimate_host_memory(const Model& model, const DatasetPair& data, const TrainerOptions& options,
                                bool training) {
  HostMemory parts = PlannedRun(model, data, options, training).parts();
  parts.process = engine::process_resident_bytes();
  return parts;
}

void require_memory_beyond(std::size_t held, const Model& model, const DatasetPair& data, const TrainerOptions& options,
                           bool training) {
  if (options.parallel.process_group) return;
  const auto host = engine::room_on(Device{});
  if (!host) return;
  const std::size_t room = host->bytes + held;
  const PlannedRun run(model, data, options, training);
  const HostMemory parts = run.parts();  // what is resident now is not part of the free memory
  if (parts.total() <= room) return;
  throw Error(ErrorCode::device,
              fmt::format("out of memory: a batch of {} on {} replica{} needs {} ({} for the replicas), but {} are "
                          "available ({}); {}",
                          run.batch(), run.replicas(), run.replicas() == 1 ? "" : "s", engine::in_units(parts.total()),
                          engine::in_units(parts.replicas), engine::in_units(room), host->limit, what_fits(run, room)));
}

void require_memory(const Model& model, const DatasetPair& data, const TrainerOptions& options, bool training) {
  require_memory_beyond(0, model, data, options, training);
}

}  // namespace dp
