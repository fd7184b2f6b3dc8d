// The trainer: checks the options, owns the network, creates the loaders and executes a TrainingRun.
#include "dp/trainer.h"

#include <algorithm>
#include <thread>

#include "dp/error.h"
#include "dp/process_group.h"
#include "engine/base/files.h"
#include "engine/train/data_identity.h"
#include "engine/train/host_memory.h"
#include "engine/train/passes.h"
#include "engine/train/record/run_config.h"
#include "engine/train/record/run_folder.h"
#include "engine/train/start.h"
#include "engine/train/training_run.h"

namespace dp {
namespace {

void check_init(const TrainerOptions& options) {
  if (!options.init.empty() && !options.resume.empty() && options.resume != "auto")
    throw Error(ErrorCode::usage,
                "--init '" + options.init + "' and --resume '" + options.resume + "' exclude each other; give one");
  if (options.init_partial && options.init.empty())
    throw Error(ErrorCode::usage, "--init-partial requires --init FILE");
}

bool makes_targets(const TrainerOptions& options) {
  return options.mixup_alpha > 0 || options.cutmix_alpha > 0 || !options.class_weights.empty() ||
         options.balance_classes || (options.sample_weights && !options.parallel.output_loss);
}

DataParallelOptions with_split(const Model& model, const TrainerOptions& options) {
  DataParallelOptions parallel = parallel_options(options);
  if (parallel.stop == nullptr) parallel.stop = options.stop;
  if (options.measure_split) parallel.split_weights = measure_split(model, parallel, options.batch_size);
  return parallel;
}

std::vector<float> balanced_weights(const Dataset& dataset) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(dataset.classes()));
  for (std::int64_t i = 0; i < dataset.size(); ++i)
    if (const auto label = static_cast<std::size_t>(dataset.label(i)); label < counts.size()) ++counts[label];
  std::vector<float> weights;
  for (const std::int64_t count : counts)
    weights.push_back(count == 0 ? 0.0f
                                 : static_cast<float>(static_cast<double>(dataset.size()) /
                                                      static_cast<double>(dataset.classes() * count)));
  return weights;
}

std::shared_ptr<const Dataset> augmented(const std::shared_ptr<const Dataset>& train, const TrainerOptions& options) {
  return options.augmentation != Augmentation{} ? with_augmentation(train, options.augmentation) : train;
}

}  // namespace

DataParallelOptions parallel_options(const TrainerOptions& options) {
  DataParallelOptions parallel = options.parallel;
  parallel.sample_weights = parallel.sample_weights || options.sample_weights;
  if (!makes_targets(options)) return parallel;
  parallel.soft_targets = true;
  parallel.label_smoothing = 0;
  return parallel;
}

struct Trainer::State {
  DatasetPair data;
  TrainerOptions given, options;  // in `options`, automatic choices are made
  DataParallel net;
  bool used = false;

  State(const Model& model, const DatasetPair& pair, const TrainerOptions& options_given)
      : data{augmented(pair.train, options_given), pair.test},
        given(options_given),
        options(options_given),
        net(model, with_split(model, options_given)) {
    options.parallel = net.options();
    options.measure_split = false;  // the measured weights are in options.parallel
    if (!leads()) options.output_dir.clear(), options.summary_file.clear();
    if (options.workers == 0) options.workers = loader_threads(options.parallel);
    options.images_on = chosen_place(data, options);
  }

  std::size_t held() const {
    std::size_t bytes = 0;
    for (int replica = 0; replica < net.size() && !options.parallel.process_group &&
                          options.parallel.devices.front().kind != DeviceKind::cuda;
         ++replica)
      bytes += resident_bytes(net.memory_use(replica), options.parallel);
    return bytes;
  }

  void report_threads(const TrainerCallbacks& callbacks) const {
    if (const std::string text = net.threads_notice(); callbacks.on_message && !text.empty())
      callbacks.on_message(text);
  }

  bool leads() const { return !options.parallel.process_group || options.parallel.process_group->leads(); }

  LoaderOptions loader_options() const {
    LoaderOptions loader{.seed = options.parallel.seed, .workers = options.workers};
    if (const ProcessGroup* group = options.parallel.process_group.get())
      loader.rank = group->rank(), loader.ranks = group->size();
    return loader;
  }

  std::shared_ptr<const ImageSet> resident(const Dataset& part) const {
    return options.images_on == ImagesOn::device ? read_images(part, options.workers) : nullptr;
  }

  // Returns what ends the loader's wait for a batch. With several ranks, only rank 0 may leave a step early, because it
  // saves. The other ranks stop waiting when the process group has failed.
  std::function<bool()> stop() const {
    const std::shared_ptr<ProcessGroup>& group = options.parallel.process_group;
    if (group && !group->leads()) return [group] { return group->failure().has_value(); };
    if (options.stop == nullptr) return {};
    return [stop = options.stop] { return stop->load() != 0; };
  }

  Loader test_loader() const {
    LoaderOptions loader = loader_options();
    if (!options.parallel.process_group) loader.stop = stop();
    loader.batch_size = eval_batch_size(options);
    loader.shuffle = false;
    if (options.test_augmentation == TestAugmentation::none) loader.resident = resident(*data.test);
    return Loader(data.test, loader);
  }

  Loader train_loader() const {
    LoaderOptions loader = loader_options();
    loader.batch_size = options.batch_size;
    loader.shuffle = options.shuffle;
    loader.augment = options.augment;
    loader.drop_last = options.drop_last;
    loader.balanced = options.balanced_sampling;
    loader.repeats = options.repeats;
    loader.pad = true;
    loader.stop = stop();
    loader.resident = resident(*data.train);
    loader.targets = {.mixup_alpha = options.mixup_alpha,
                      .cutmix_alpha = options.cutmix_alpha,
                      .class_weights = options.balance_classes ? balanced_weights(*data.train) : options.class_weights,
                      .label_smoothing = given.parallel.label_smoothing,
                      .classes = net.model().output()[0],
                      .sample_weights = options.sample_weights};
    return Loader(data.train, loader);
  }
};

Trainer::Trainer(const Model& model, const DatasetPair& data, const TrainerOptions& options) {
  check_options(model, data, options);
  check_init(options);
  state_ = std::make_unique<State>(model, data, options);
}

Trainer::~Trainer() = default;

DataParallel& Trainer::net() { return state_->net; }

RunSummary Trainer::run(const TrainerCallbacks& given) {
  const TrainerCallbacks callbacks = state_->leads() ? given : TrainerCallbacks{};
  if (std::exchange(state_->used, true)) throw Error(ErrorCode::usage, "a trainer runs only once; create another");
  state_->report_threads(callbacks);
  TrainerOptions& options = state_->options;
  require_memory_beyond(state_->held(), state_->net.model(), state_->data, options, /*training=*/true);
  Loader train = state_->train_loader();
  Loader test = state_->test_loader();
  if (options.schedule.spans_the_run()) {
    const double batches = static_cast<double>(train.batches_per_epoch());
    options.schedule.total_epochs = static_cast<double>(options.epochs);
    if (options.max_steps > 0)
      options.schedule.total_epochs =
          std::min(options.schedule.total_epochs, static_cast<double>(options.max_steps) / batches);
  }
  nlohmann::ordered_json environment;
  if ((!options.output_dir.empty() || !state_->leads()) && !options.dry_run) {
    environment = environment_of(options, state_->data, state_->net);
    if (!state_->leads()) environment.erase("command");  // it may contain secrets; rank 0 records its own
  }
  return TrainingRun(state_->net, train, test, state_->given, options, environment, callbacks).execute();
}

RunSummary Trainer::evaluate(const TrainerCallbacks& given) {
  const bool leads = state_->leads();
  const TrainerCallbacks callbacks = leads ? given : TrainerCallbacks{};
  const TrainerOptions& options = state_->options;
  ProcessGroup* const group = options.parallel.process_group.get();
  const Notice notice = [&](const std::string& text) {
    if (callbacks.on_message) callbacks.on_message(text);
  };
  state_->report_threads(callbacks);
  FileHandle summary_end;
  if (!options.summary_file.empty()) summary_end = require_writable(options.summary_file);
  require_memory_beyond(state_->held(), state_->net.model(), state_->data, options, /*training=*/false);
  RunSummary summary = describe(state_->net, options);
  DataIdentity data;
  if (!options.resume.empty() || group != nullptr) data = identity_of(nullptr, *state_->data.test);
  if (group != nullptr) require_same_data(*group, data);
  std::optional<Resumed> resumed;
  if (leads) resumed = find_resumed(options, false, notice);
  if (resumed) {
    TrainState wanted;
    wanted.model = summary.model;
    require_same_run(*resumed, wanted, true);
    require_same_data(*resumed, options, data, /*inside_epoch=*/false, notice);
    resumed->checkpoint.optimizer = {};  // an evaluation needs none, and may name another
    summary.checkpoint = resumed->folder;
    summary.steps = resumed->checkpoint.state.step;
    summary.epochs = resumed->checkpoint.state.epoch;
  } else if (!options.init.empty()) {
    summary.checkpoint = options.init;
  } else if (leads && !options.resume.empty()) {
    throw Error(ErrorCode::data,
                "there is no checkpoint in '" + options.output_dir + "' to evaluate; give one with --resume");
  }
  start_from(state_->net, options, resumed, recorded_names(*state_->data.test), false, notice);
  Loader test = state_->test_loader();
  prepare_batches(state_->net, nullptr, test, state_->options.optimizer, callbacks.on_work);
  if (callbacks.on_start) callbacks.on_start(state_->net, options);
  StopRequest stop(options.stop, options.parallel.process_group);
  std::optional<EvaluatedLogits> outputs;
  auto report = evaluate_all(state_->net, test, options.dry_run ? 1 : 0, stop, options.test_augmentation,
                             options.metrics, outputs, callbacks.on_work);
  summary.interrupted = !report;
  if (!report) {
    stop.cause();
    stop.rethrow();
  }
  if (report) {
    report->alone = true;
    if (callbacks.on_eval) callbacks.on_eval(*report);
    set_result(summary, *report);
  }
  if (state_->data.test->replaced()) {
    BadImages bad;
    const auto replaced = bad.collect(*state_->data.test, options.parallel.process_group.get());
    if (!replaced.empty()) notice(to_notice(replaced, ""));
    summary.bad_images.emplace(bad.all().begin(), bad.all().end());
  }
  summary.weights_sha256 = weights_sha256(state_->net.weights());
  if (report && !options.summary_file.empty()) write_file_atomically(options.summary_file, to_json(summary) + "\n");
  return summary;
}

}  // namespace dp
