#include "engine/train/start.h"
#include "engine/train/metrics.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <type_traits>

#include "data/augment/policies.h"
#include "dp/error.h"
#include "dp/process_group.h"
#include "dp/run_options.h"
#include "engine/base/files.h"
#include "engine/base/machine.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/torch_file.h"
#include "engine/optimizer/optimizer.h"
#include "engine/train/data_identity.h"
#include "engine/train/passes.h"
#include "engine/train/record/run_config.h"
#include "engine/train/record/run_folder.h"
#include "kernels/device/backend.h"
#include "kernels/device/host/cores.h"

namespace dp {
namespace {

namespace fs = std::filesystem;

// Error(data) if the path cannot be examined, so that a run with checkpoints does not start anew.
bool exists(const std::string& path) {
  std::error_code error;
  const bool found = fs::exists(path, error);
  if (error) throw_data_errno(path, "looking for it", error.value());
  return found;
}

bool is_folder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool same(const std::string& a, const std::string& b) {
  std::error_code error;
  return fs::equivalent(a, b, error);
}

std::string shortened(const std::vector<std::string>& list) {
  std::string out;
  for (std::size_t i = 0; i < std::min<std::size_t>(list.size(), 8); ++i) out += (i ? "; " : "") + list[i];
  return list.size() > 8 ? out + fmt::format("; and {} more", list.size() - 8) : out;
}

// The folder of a run's newest checkpoint that can be read. Without one, `refusal` says why.
struct Newest {
  std::string folder{}, refusal{};
  bool nothing_saved = false;
};

Newest newest_noticed(const std::string& run, const Notice& notice) {
  std::vector<PassedOver> passed;
  const std::string found = find_checkpoint(run, &passed);
  if (found.empty()) {
    std::vector<std::string> reasons;
    for (const PassedOver& one : passed) reasons.push_back(one.reason);
    if (reasons.empty())
      return {"",
              fmt::format(
                  "nothing was saved yet in '{}' (a run that ends before its first save is complete leaves nothing); "
                  "start it without --resume",
                  run),
              true};
    return {"", fmt::format("no checkpoint in '{}/checkpoints' can be read: {}; give another with --resume", run,
                            shortened(reasons))};
  }
  for (const PassedOver& one : passed)
    if (notice)
      notice(
          fmt::format("checkpoint '{}' cannot be read and is skipped ({}); using '{}'", one.folder, one.reason, found));
  return {found};
}

Newest newest_in(const std::string& run, const TrainerOptions& options, bool locked, const Notice& notice) {
  if (locked && same(run, options.output_dir)) return newest_noticed(run, notice);
  const FolderLock lock(run);  // find_checkpoint changes the folder: unsafe during another run's save
  if (lock.held()) return newest_noticed(run, notice);
  if (exists(run + "/checkpoints/last")) return {run + "/checkpoints/last"};
  return {"", fmt::format("'{}' has no checkpoint 'last' yet, and another run is writing there; wait for it", run)};
}

template <typename T>
void require_equal(const Resumed& resumed, const char* what, const T& had, const T& wanted) {
  if (had == wanted) return;
  throw Error(ErrorCode::usage,
              fmt::format("checkpoint '{}' was made with {} {}, but this run uses {}; use {} {}, or start a new run",
                          resumed.folder, what, had, wanted, what, had));
}

// Options of the augmentation. One that is not recorded leaves it to the data set.
void require_same_augmentation(const Resumed& resumed, const nlohmann::json& then, const nlohmann::json& now) {
  const auto text = [](const nlohmann::json& config, const std::string& key) {
    const nlohmann::json value = value_in_effect(config, key);
    return value.is_null() ? std::string("not set") : value.is_string() ? value.get<std::string>() : value.dump();
  };
  for (const auto& row : run_options().rows())
    if (row.group == kAugmentationGroup)
      require_equal(resumed, row.name.c_str(), text(then, row.name), text(now, row.name));
}

// Options that determine the samples of each step. An option that the checkpoint does not record is not compared.
void require_same_order(const Resumed& resumed, const std::string& had, const std::string& wanted) {
  const auto then = nlohmann::json::parse(had, nullptr, false), now = nlohmann::json::parse(wanted, nullptr, false);
  for (const char* key : {"no-shuffle", "no-augment", "balanced-sampling", "drop-last"}) {
    const auto is_on = [&](const nlohmann::json& config) {
      const nlohmann::json value = config.is_object() ? value_in_effect(config, key) : nlohmann::json();
      return value.is_boolean() ? std::optional(value.get<bool>()) : std::nullopt;
    };
    const auto text = [](bool on) { return on ? "on" : "off"; };
    if (is_on(then) && is_on(now))
      require_equal(resumed, key, std::string(text(*is_on(then))), std::string(text(*is_on(now))));
  }
  if (then.is_object() && now.is_object()) require_same_augmentation(resumed, then, now);
}

// Further options that determine the samples or the arithmetic of a step. One that is not recorded has its default.
void require_same_step(const Resumed& resumed, const std::string& had, const std::string& wanted) {
  const auto then = nlohmann::json::parse(had, nullptr, false), now = nlohmann::json::parse(wanted, nullptr, false);
  if (!then.is_object() || !now.is_object()) return;
  const auto text = [](const nlohmann::json& config, const char* key) {
    const nlohmann::json value = value_in_effect(config, key);
    if (value.is_null()) return run_options().text(key, TrainerOptions{});
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  require_equal(resumed, "optimizer", text(then, "optimizer"), text(now, "optimizer"));
  if (then.contains("bn")) require_equal(resumed, "bn", text(then, "bn"), text(now, "bn"));
  require_equal(resumed, "ra-reps", text(then, "ra-reps"), text(now, "ra-reps"));
  require_equal(resumed, "logical-shards", text(then, "logical-shards"), text(now, "logical-shards"));
  if (!now.contains("logical-shards")) return;
  // With logical shards these options change the bits.
  const std::string threads = text(then, "threads-per-replica");
  if (const auto team = kernels::largest_team(); team && team->cores < std::atoi(threads.c_str()))
    throw Error(ErrorCode::usage,
                fmt::format("checkpoint '{}' was made with threads-per-replica {}, which {} does not permit; remove "
                            "that limit, or start a new run",
                            resumed.folder, threads, team->source));
  for (const char* const key : {"threads-per-replica", "reduce-dtype"})
    require_equal(resumed, key, text(then, key), text(now, key));
}

template <typename T>
bool all_finite(const Tensor& tensor) {
  const auto values = tensor.span<T>();
  return std::all_of(values.begin(), values.end(), [](T value) { return std::isfinite(value); });
}

// The tensors that the state of this optimizer has. `weights`: the model's state dict.
NamedTensors state_like(const Model& model, const NamedTensors& weights, const OptimizerState& state) {
  NamedTensors tensors;
  for (const std::string_view slot : engine::slot_names(engine::kind_of(state)))
    for (const ParameterSpec& parameter : model.parameters())
      for (const auto& [name, tensor] : weights)
        if (name == parameter.name) tensors.emplace_back(std::string(slot) + "." + name, tensor);
  return tensors;
}

// What loading these tensors means for the model.
struct Coverage {
  bool layers = false;  // whether any tensor is the weight of a layer, not only biases, statistics and counters
  double percent = 0;   // of the model's values, rounded down to a tenth
};
Coverage coverage_of(const NamedTensors& own, const NamedTensors& taken) {
  const auto count = [](const NamedTensors& tensors) {
    std::int64_t values = 0;
    for (const auto& [name, tensor] : tensors) values += tensor.numel();
    return static_cast<double>(values);
  };
  return {std::ranges::any_of(taken, [](const auto& one) { return one.second.shape().rank() > 1; }),
          std::floor(1000 * count(taken) / count(own)) / 10};
}

// The remedy in the refusal of weights of which only these tensors fit.
std::string partial_remedy(const NamedTensors& own, const NamedTensors& taken) {
  constexpr const char* kOthers = "give weights of this model with --init";
  if (taken.empty()) return std::string("no tensor fits; ") + kOthers;
  const Coverage coverage = coverage_of(own, taken);
  if (!coverage.layers)
    return fmt::format("{} of {} tensors fit, but no weight of a layer; {}", taken.size(), own.size(), kOthers);
  const std::string loads = fmt::format("--init-partial loads {} of {} tensors, {:.1f} % of the values", taken.size(),
                                        own.size(), coverage.percent);
  return coverage.percent < 50 ? kOthers + std::string("; ") + loads : loads;
}

// The tensors of `given`, which must be exactly those of `own`.
NamedTensors exactly(const NamedTensors& own, NamedTensors given, const std::string& source) {
  FittedWeights fitted = fit_weights(own, std::move(given));
  std::ranges::move(fitted.changes, std::back_inserter(fitted.faults));
  if (!fitted.faults.empty())
    throw Error(ErrorCode::data, fmt::format("'{}' does not fit the model: {}; resume with the model of the checkpoint",
                                             source, shortened(fitted.faults)));
  return std::move(fitted.tensors);
}

std::vector<std::string> classes_of_init(const std::string& path) {
  for (const char* const inside : {"/model.safetensors", "/checkpoints/last/model.safetensors"})
    if (exists(path + inside))
      throw Error(ErrorCode::data, "'" + path + "' is a folder; give the weights in it: --init " + path + inside);
  try {
    FileSource source(path);
    if (is_torch_file(source)) return {};  // PyTorch's files have no class names
    return classes_in(read_safetensors_header(source).metadata, path);
  } catch (const Error& error) {
    rethrow_with_remedy(error, kOtherWeights);
  }
}

std::optional<std::vector<std::string>> read_classes(const TrainerOptions& options) {
  const std::string folder = find_resumed_folder(options, /*locked=*/false, {});
  if (folder.empty()) return options.init.empty() ? std::nullopt : std::optional(classes_of_init(options.init));
  try {
    const FileHandle opened = open_folder(folder, Links::follow);
    FileSource state(opened, folder, kStateFile);
    const std::optional<DataIdentity> data = read_train_state(state).data;
    return data ? data->classes : std::vector<std::string>{};
  } catch (const Error& error) {
    rethrow_with_remedy(error, kAnotherCheckpoint);
  }
}

// Sends a long text from rank 0 to all ranks, in pieces, because an exchange has a limit.
std::string long_from_first(ProcessGroup& group, const std::string& mine) {
  constexpr std::size_t kPiece = 60'000;
  const std::size_t size = std::stoull(group.from_first(std::to_string(mine.size())));
  std::string text;
  while (text.size() < size)
    text += group.from_first(group.leads() ? std::string_view(mine).substr(text.size(), kPiece) : std::string_view());
  return text;
}

// Whether the file of options.init records other class names. Without init_partial that is an Error(data).
bool has_other_classes(const TrainerOptions& options, const std::vector<std::string>& classes, const Notice& notice) {
  const std::vector<std::string> had = classes_of_init(options.init);
  if (had.empty()) return false;
  try {
    require_same_classes("'" + options.init + "'", had, classes, options.classes_by_position, notice);
    return false;
  } catch (const Error& error) {
    if (!options.init_partial) throw;
    const std::string what = error.what();
    if (notice) notice("the classifier is not loaded: " + what.substr(0, what.find("; ")));
    return true;
  }
}

}  // namespace

void rethrow_with_remedy(const Error& error, const std::string& remedy) {
  if (error.code() != ErrorCode::data) throw;
  throw Error(ErrorCode::data, error.what() + ("; " + remedy));
}

std::string find_resumed_folder(const TrainerOptions& options, bool locked, const Notice& notice) {
  if (options.resume.empty()) return "";
  std::string folder = options.resume;
  if (options.resume == "auto") {
    if (options.output_dir.empty())
      throw Error(ErrorCode::usage, "--resume auto requires the run's folder; give it with --output-dir");
    if (!exists(options.output_dir + "/checkpoints")) return "";
    const Newest newest = newest_in(options.output_dir, options, locked, notice);
    folder = newest.folder;
    if (folder.empty()) {
      if (names_in(options.output_dir + "/checkpoints").empty()) return "";
      throw Error(ErrorCode::data,
                  newest.refusal + (newest.nothing_saved ? " in" : ", or choose") + " another --output-dir");
    }
  } else if (exists(folder + "/checkpoints")) {
    const Newest newest = newest_in(folder, options, locked, notice);
    folder = newest.folder;
    if (folder.empty()) throw Error(ErrorCode::data, newest.refusal);
  } else if (!exists(folder)) {
    throw Error(ErrorCode::data,
                "checkpoint '" + folder + "' does not exist; give a checkpoint or run folder with --resume");
  } else if (!is_folder(folder)) {
    throw Error(ErrorCode::data, "'" + folder + "' is not a folder; give a checkpoint or run folder with --resume");
  } else if (!exists(folder + "/manifest.json")) {
    throw Error(ErrorCode::data, "'" + folder +
                                     "' contains neither manifest.json (a checkpoint) nor checkpoints/ (a run); " +
                                     "give a checkpoint or run folder with --resume");
  }
  return folder;
}

std::optional<std::vector<std::string>> recorded_classes(const TrainerOptions& options) {
  ProcessGroup* const group = options.parallel.process_group.get();
  if (group == nullptr) return read_classes(options);
  nlohmann::json names;  // null: no weights
  if (group->leads()) {
    const Busy busy(group);
    if (const auto read = read_classes(options)) names = *read;
  }
  names = nlohmann::json::parse(long_from_first(*group, names.dump()));
  return names.is_null() ? std::nullopt : std::optional(names.get<std::vector<std::string>>());
}

std::optional<Resumed> find_resumed(const TrainerOptions& options, bool locked, const Notice& notice) {
  const std::string folder = find_resumed_folder(options, locked, notice);
  if (folder.empty()) return std::nullopt;
  try {
    return Resumed{folder, load_checkpoint(folder)};
  } catch (const Error& error) {
    rethrow_with_remedy(error, kAnotherCheckpoint);
  }
}

void require_same_run(const Resumed& resumed, const TrainState& wanted, bool weights_only) {
  const TrainState& had = resumed.checkpoint.state;
  require_equal(resumed, "model", had.model, wanted.model);
  if (weights_only) return;
  require_equal(resumed, "data set", had.dataset, wanted.dataset);
  require_equal(resumed, "seed", had.seed, wanted.seed);
  require_same_order(resumed, had.config, wanted.config);
  require_same_step(resumed, had.config, wanted.config);
}

void require_same_data(const Resumed& resumed, const TrainerOptions& options, const DataIdentity& data,
                       bool inside_epoch, const Notice& notice) {
  const std::string source = "checkpoint '" + resumed.folder + "'";
  const std::optional<DataIdentity>& had = resumed.checkpoint.state.data;
  require_same_classes(source, had ? had->classes : std::vector<std::string>{}, data.classes,
                       options.classes_by_position, notice);
  if (!had || !notice) return;
  for (const std::string& change : changed_samples(*had, data, inside_epoch)) notice(change);
}

void require_finite(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors)
    if ((tensor.dtype() == DType::f32 && !all_finite<float>(tensor)) ||
        (tensor.dtype() == DType::f64 && !all_finite<double>(tensor)))
      throw Error(ErrorCode::nonfinite, "tensor '" + name + "' contains NaN or Inf");
}

FittedWeights initial_weights(const NamedTensors& own, const TrainerOptions& options) {
  FittedWeights fitted;
  try {
    fitted = read_weights(options.init, own);
  } catch (const Error& error) {
    rethrow_with_remedy(error, kOtherWeights);
  }
  if (!fitted.faults.empty() && (!options.init_partial || !coverage_of(own, fitted.tensors).layers))
    throw Error(ErrorCode::data, fmt::format("'{}' does not fit the model: {}; {}", options.init,
                                             shortened(fitted.faults), partial_remedy(own, fitted.tensors)));
  try {
    require_finite(fitted.tensors);
  } catch (const Error& error) {
    throw Error(ErrorCode::data, "'" + options.init + "': " + error.what() + "; give other weights with --init");
  }
  return fitted;
}

void init_weights(DataParallel& net, const TrainerOptions& options, const std::vector<std::string>& classes,
                  const Notice& notice) {
  const bool other_classes = has_other_classes(options, classes, notice);
  const NamedTensors own = net.weights();
  FittedWeights fitted = initial_weights(own, options);
  if (other_classes) {
    const std::string last = net.model().parameters().back().name, layer = last.substr(0, last.rfind('.') + 1);
    std::erase_if(fitted.tensors, [&](const auto& tensor) { return tensor.first.starts_with(layer); });
  }
  net.set_weights(fitted.tensors);
  if (!notice || (fitted.changes.empty() && fitted.faults.empty())) return;
  std::string text = fmt::format("{} of {} tensors loaded from '{}'", fitted.tensors.size(), own.size(), options.init);
  for (const std::string& change : fitted.changes) text += "; " + change;
  if (!fitted.faults.empty()) text += "; not loaded: " + shortened(fitted.faults);
  notice(text);
}

void restore(DataParallel& net, const Resumed& resumed) {
  const NamedTensors own = net.weights();
  const Checkpoint& checkpoint = resumed.checkpoint;
  net.set_weights(exactly(own, checkpoint.weights, resumed.folder));
  if (!checkpoint.optimizer.tensors.empty()) {
    OptimizerState state = checkpoint.optimizer;
    const NamedTensors like = state_like(net.model(), own, state);
    state.tensors = exactly(like, std::move(state.tensors), resumed.folder);
    net.set_optimizer_state(state);
  }
  if (!checkpoint.average.empty() && net.options().ema_decay) {
    net.set_average_weights(exactly(own, checkpoint.average, resumed.folder));
    net.set_average_updates(checkpoint.average_updates);
  }
  net.set_step_count(checkpoint.state.step);
}

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
  for (const OwnMetric& metric : options.metrics) check_metric(metric);
  Augmentation varying = options.augmentation;
  varying.interpolation.reset();  // also of evaluations
  require(options.augment || varying == Augmentation{},
          "--no-augment excludes the options of the augmentation; remove it, or these");
  engine::check(options.optimizer);
  require(std::ranges::is_sorted(options.schedule.milestones),
          "--lr-milestones: the epochs must be in ascending order");
  require(options.schedule.kind != ScheduleKind::plateau || options.schedule.gamma < 1,
          "--lr-scheduler plateau reduces the learning rate; set --lr-gamma below 1");
  require(!options.parallel.own_loss || !parallel_options(options).soft_targets,
          "--own-loss excludes --mixup-alpha, --cutmix-alpha, --class-weights and --sample-weights");
  require(options.schedule.kind != ScheduleKind::plateau || options.eval_every > 0,
          "--lr-scheduler plateau follows the test loss, and --no-eval leaves evaluations out; remove one of both");
  require(options.schedule.kind != ScheduleKind::onecycle || options.schedule.warmup_epochs == 0,
          "--lr-scheduler onecycle begins with a warm-up of its own (--lr-pct-start); remove --lr-warmup-epochs");
  require(data.train != nullptr && data.test != nullptr, "the trainer requires a training set and a test set");
  for (const auto& part : {data.train, data.test}) {
    require(part->image_shape() == model.input(),
            fmt::format(
                "model '{}' requires images of {}, but the data set's images are {}; choose another model or data set",
                model.name(), to_string(model.input()), to_string(part->image_shape())));
    require(model.output().rank() == 1 && model.output()[0] >= part->classes(),
            fmt::format("model '{}' outputs {}, but the data set has {} classes", model.name(),
                        to_string(model.output()), part->classes()));
    const auto& loss = options.parallel.output_loss;
    require(!part->has_targets() || loss || options.parallel.own_loss,
            "the data set has targets, and cross-entropy reads class numbers; choose --output-loss");
    require(part->has_targets() || !loss,
            fmt::format("--output-loss {} needs targets, and the data set has class numbers; remove it",
                        loss ? name_of(*loss) : ""));
    require(!part->has_targets() || !parallel_options(options).soft_targets,
            "--mixup-alpha, --cutmix-alpha and --class-weights are for class numbers, and the data set has targets");
    require(!part->has_targets() || part->classes() == model.output()[0],
            fmt::format("model '{}' outputs {}, but the samples have {} targets", model.name(),
                        to_string(model.output()), part->classes()));
    require(part == data.test || !options.sample_weights || part->has_weights(),
            "--sample-weights: the training images have no weights; name a column of the list sample_weight");
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

std::string option_of_host(const Augmentation& augmentation, const TrainerOptions& options) {
  if (options.mixup_alpha > 0) return "--mixup-alpha";
  if (options.cutmix_alpha > 0) return "--cutmix-alpha";
  if (options.parallel.own_loss) return "--own-loss";
  if (options.balanced_sampling) return "--balanced-sampling";
  if (options.repeats > 1) return "--ra-reps";
  return options.augment ? only_on_host(augmentation) : "";
}

ImagesOn chosen_place(const DatasetPair& data, const TrainerOptions& options) {
  const bool varies = data.train->varies() || data.test->varies();
  const std::string on_host = option_of_host(data.train->augmentation(), options);
  if (options.images_on == ImagesOn::device && varies)
    throw Error(ErrorCode::usage,
                "this data set changes its images on each read, so it cannot be device-resident; use --images-on host");
  if (options.images_on == ImagesOn::device && !on_host.empty())
    throw Error(ErrorCode::usage, on_host + " does not work with a device-resident data set; use --images-on host");
  if (options.images_on != ImagesOn::automatic) return options.images_on;
  const std::vector<Device>& devices = options.parallel.devices;
  const std::size_t bytes = bytes_of(*data.train) + bytes_of(*data.test);
  const std::size_t copies =
      options.parallel.process_group ? static_cast<std::size_t>(options.parallel.process_group->local_size()) : 1;
  const bool keep = !varies && on_host.empty() && bytes * copies <= available_memory() / kShare &&
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
    start.best_top1 = had.best_top1, start.best_loss = had.best_loss, start.since_best = had.since_best;
    start.plateau = had.plateau;
    start.resumed = true;
    start.state = !resumed->checkpoint.optimizer.tensors.empty();
    start.updates = resumed->checkpoint.optimizer.updates;
    start.average = !resumed->checkpoint.average.empty();
    start.scaled = had.loss_scale.has_value();
    start.loss_scale = had.loss_scale.value_or(LossScale{});
  }
  start.initialised = !start.resumed && (!options.init.empty() || options.first_weights);
  if (group != nullptr) start = from_first(*group, start);
  if (!leads) {
    follow(net, start, options.optimizer);
  } else if (resumed) {
    restore(net, *resumed);
  } else if (!options.init.empty()) {
    init_weights(net, options, classes, notice);
  } else if (options.first_weights) {
    net.set_weights(options.first_weights());
  }
  if (start.scaled && net.options().amp == Amp::float16) net.set_loss_scale(start.loss_scale);
  return start;
}

}  // namespace dp
