#include "engine/train/start.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "dp/error.h"
#include "dp/process_group.h"
#include "dp/run_options.h"
#include "engine/base/available_memory.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/optimizer/optimizer.h"
#include "kernels/device/backend.h"

namespace dp {
namespace {

void require(bool good, const std::string& what) {
  if (!good) throw Error(ErrorCode::usage, what);
}

}  // namespace

void check_options(const Model& model, const DatasetPair& data, const TrainerOptions& options) {
  run_options().check(options);
  require(!options.profile || options.parallel.trace_steps > 0, "profile requires traced steps; set trace_steps");
  require(
      !options.measure_split || !(options.parallel.deterministic || options.parallel.logical_shards > 0),
      "--split auto excludes --deterministic and --logical-shards: the shards would depend on timings; give weights "
      "such as --split 3:1");
  require(!options.measure_split || options.parallel.split != Split::chunk, "measure_split excludes Split::chunk");
  require(!options.measure_split || !options.parallel.process_group,
          "--split auto requires one process (--engine dp): ranks have shards of equal size");
  require(options.eval_every > 0 || options.patience == 0,
          "--patience counts evaluations, and --no-eval leaves them out; remove one of both");
  engine::check(options.optimizer);
  require(std::ranges::is_sorted(options.schedule.milestones),
          "--lr-milestones: the epochs must be in ascending order");
  require(data.train != nullptr && data.test != nullptr, "the trainer requires a training set and a test set");
  for (const auto& part : {data.train, data.test}) {
    require(part->image_shape() == model.input(),
            fmt::format(
                "model '{}' requires images of {}, but the data set's images are {}; choose another model or data set",
                model.name(), to_string(model.input()), to_string(part->image_shape())));
    require(model.output().rank() == 1 && model.output()[0] >= part->classes(),
            fmt::format("model '{}' outputs {}, but the data set has {} classes", model.name(),
                        to_string(model.output()), part->classes()));
    const auto names = static_cast<std::int64_t>(part->class_names().size());
    require(names == 0 || names == part->classes(),
            fmt::format("the data set has {} classes, but names {}; name all or none", part->classes(), names));
  }
  const auto train_names = data.train->class_names(), test_names = data.test->class_names();
  require(
      train_names.empty() || test_names.empty() || train_names == test_names,
      "the training set and the test set name their classes differently; give both the same names in the same order");
}

namespace {

constexpr std::size_t kShare =
    4;  // the images may take at most 1/kShare of the free memory of the host and of each device

std::size_t bytes_of(const Dataset& dataset) {
  return static_cast<std::size_t>(dataset.size()) * static_cast<std::size_t>(dataset.image_shape().numel());
}

bool has_room(Device device, const std::vector<Device>& devices, std::size_t bytes) {
  const auto replicas = static_cast<std::size_t>(std::count(devices.begin(), devices.end(), device));
  return bytes * replicas <= kernels::backend(device.kind).free_memory(device) / kShare;
}

}  // namespace

ImagesOn chosen_place(const DatasetPair& data, const TrainerOptions& options) {
  const bool varies = data.train->varies() || data.test->varies();
  if (options.images_on == ImagesOn::device && varies)
    throw Error(ErrorCode::usage,
                "this data set changes its images on each read, so it cannot be device-resident; use --images-on host");
  if (options.images_on != ImagesOn::automatic) return options.images_on;
  const std::vector<Device>& devices = options.parallel.devices;
  const std::size_t bytes = bytes_of(*data.train) + bytes_of(*data.test);
  const std::size_t copies =
      options.parallel.process_group ? static_cast<std::size_t>(options.parallel.process_group->local_size()) : 1;
  const bool keep = !varies && bytes * copies <= available_memory() / kShare &&
                    std::all_of(devices.begin(), devices.end(), [&](Device device) {
                      return device.kind == DeviceKind::cuda && has_room(device, devices, bytes);
                    });
  return keep ? ImagesOn::device : ImagesOn::host;
}

namespace {

Start from_first(ProcessGroup& group, const Start& mine) {
  static_assert(std::is_trivially_copyable_v<Start>);
  const std::string text = group.from_first({reinterpret_cast<const char*>(&mine), sizeof mine});
  Start first;
  if (text.size() != sizeof first)
    throw Error(ErrorCode::usage, "the ranks run different builds of the program; start the same build on every host");
  std::memcpy(&first, text.data(), sizeof first);
  return first;
}

// Takes part in the broadcasts of restore() and init_weights(), which run on rank 0.
void follow(DataParallel& net, const Start& start, const Optimizer& optimizer) {
  if (!start.resumed && !start.initialised) return;
  net.set_weights({});
  if (start.state) net.set_optimizer_state({std::string(name_of(optimizer)), start.updates});
  if (start.average && net.options().ema_decay) net.set_average_weights({});
  net.set_step_count(start.step);
}

}  // namespace

void require_same_options(ProcessGroup& group, nlohmann::ordered_json config) {
  for (const char* own :
       {"resolved", "workers", "threads-per-replica", "init", "init-partial", "images-on", "data-path"})
    config.erase(own);
  const auto first = parse_record<nlohmann::ordered_json>(group.from_first(config.dump()));
  for (const auto& [name, value] : config.items())
    if (!first.contains(name) || first.at(name) != value)
      throw Error(ErrorCode::usage, "rank " + std::to_string(group.rank()) + " was started with " + name + " " +
                                        value.dump() + ", rank 0 with " +
                                        (first.contains(name) ? first.at(name).dump() : std::string("none")) +
                                        "; start all ranks with the same options");
}

Start start_from(DataParallel& net, const TrainerOptions& options, const std::optional<Resumed>& resumed,
                 const std::vector<std::string>& classes, bool writes, const Notice& notice) {
  ProcessGroup* const group = net.options().process_group.get();
  const bool leads = group == nullptr || group->leads();
  Start start;
  start.writes = writes;
  if (leads && resumed) {
    const TrainState& had = resumed->checkpoint.state;
    start.step = had.step, start.skipped = had.skipped, start.epoch = had.epoch,
    start.batch_in_epoch = had.batch_in_epoch;
    start.best_top1 = had.best_top1, start.since_best = had.since_best;
    start.resumed = true;
    start.state = !resumed->checkpoint.optimizer.tensors.empty();
    start.updates = resumed->checkpoint.optimizer.updates;
    start.average = !resumed->checkpoint.average.empty();
    start.scaled = had.loss_scale.has_value();
    start.loss_scale = had.loss_scale.value_or(LossScale{});
  }
  start.initialised = !start.resumed && !options.init.empty();
  if (group != nullptr) start = from_first(*group, start);
  if (!leads) {
    follow(net, start, options.optimizer);
  } else if (resumed) {
    restore(net, *resumed);
  } else if (start.initialised) {
    init_weights(net, options, classes, notice);
  }
  if (start.scaled && net.options().amp == Amp::float16) net.set_loss_scale(start.loss_scale);
  return start;
}

}  // namespace dp
