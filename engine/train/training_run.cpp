#include "engine/train/training_run.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "dp/error.h"
#include "engine/train/passes.h"
#include "engine/train/records.h"
#include "engine/train/restore.h"
#include "engine/train/run_config.h"
#include "engine/train/start.h"

namespace dp {

TrainingRun::TrainingRun(DataParallel& net, Loader& train, Loader& test, const TrainerOptions& options,
                         const TrainerCallbacks& callbacks)
    : net_(net),
      train_(train),
      test_(test),
      options_(options),
      callbacks_(callbacks),
      folder_(options.dry_run ? "" : options.output_dir),
      stop_(options.stop, options.parallel.process_group),
      batches_(train.batches_per_epoch()),
      most_steps_(options.max_steps),
      meter_(/*by_steps=*/options.parallel.process_group != nullptr) {
  state_.model = net.model().name();
  state_.dataset = options.dataset_name;
  state_.seed = options.parallel.seed;
  state_.global_batch = options.batch_size;
}

namespace {

// Clears TrainerOptions::unsaved when execute() returns or throws.
class Unsaved {
 public:
  explicit Unsaved(std::atomic<bool>* flag) : flag_(flag) {}
  ~Unsaved() {
    if (flag_ != nullptr) flag_->store(false);
  }
  Unsaved(const Unsaved&) = delete;
  Unsaved& operator=(const Unsaved&) = delete;

 private:
  std::atomic<bool>* flag_;
};

}  // namespace

RunSummary TrainingRun::execute() {
  const Unsaved unsaved(options_.unsaved);
  begin();
  try {
    train();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::nonfinite || (group() != nullptr && !group()->leads())) throw;
    const std::string where = good_checkpoint_.empty() ? "there is no checkpoint yet"
                                                       : "the last good checkpoint is '" + good_checkpoint_ + "'";
    const bool skips = options_.parallel.on_nonfinite == OnNonfinite::skip;
    throw Error(
        error.code(),
        error.what() + ("; " + where) + "; lower the learning rate" + (skips ? "" : ", or use --on-nonfinite skip"),
        error.others());
  }
  RunSummary result = summary();
  const std::string text = to_json(result) + "\n";
  if (folder_.writes()) write_file_atomically(folder_.path() + "/summary.json", text);
  if (!options_.summary_file.empty()) write_file_atomically(options_.summary_file, text);
  if (!alone_) {
    write_trace();
    return result;
  }
  // This must be last: it ends the other ranks, and all further calls of this rank in the group.
  group()->fail(Error(ErrorCode::device,
                      fmt::format("interrupted while waiting for data; the run is saved at step {}", state_.step)));
  return result;
}

namespace {

// Marks file access, which may take longer than the ranks' timeout.
class Busy {
 public:
  explicit Busy(ProcessGroup* group) : group_(group) {
    if (group_ != nullptr) group_->busy(true);
  }
  ~Busy() {
    if (group_ != nullptr) group_->busy(false);
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  ProcessGroup* group_;
};

bool had_average(const Resumed& resumed) { return !resumed.checkpoint.average.empty(); }

}  // namespace

void TrainingRun::begin() {
  if (!options_.summary_file.empty()) summary_end_ = require_writable(options_.summary_file);
  if (!options_.trace_file.empty() && (group() == nullptr || group()->leads()))
    trace_end_ = require_writable(options_.trace_file);
  const nlohmann::ordered_json config = run_config(state_.model, options_);
  state_.config = config.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
  if (group() != nullptr) {
    nlohmann::ordered_json all = config;  // and the options that determine when ranks exchange data
    all["dry-run"] = options_.dry_run;
    all["trace"] = !options_.trace_file.empty();
    require_same_options(*group(), all);
  }
  std::optional<std::int64_t> continued_from;
  const Notice tell = [this](const std::string& text) { notice(text); };
  std::optional<Resumed> resumed;
  if (group() == nullptr || group()->leads()) {
    const Busy busy(group());
    resumed = find_resumed(options_, folder_.writes(), tell);
  }
  if (resumed) {
    require_same_run(*resumed, state_, false);
    const TrainState& had = resumed->checkpoint.state;
    if (had.batch_in_epoch > batches_)
      throw Error(
          ErrorCode::usage,
          fmt::format("checkpoint '{}' is at batch {} of an epoch of {}; resume with the same data set and --drop-last",
                      resumed->folder, had.batch_in_epoch, batches_));
    good_checkpoint_ = resumed->folder;
    if (folder_.owns(resumed->folder)) continued_from = had.step;
    notice(fmt::format("resumed from '{}' at step {}, epoch {}, batch {}", resumed->folder, had.step, had.epoch,
                       had.batch_in_epoch));
    if (had_average(*resumed) && !options_.parallel.ema_decay)
      notice("its moving average is dropped; --model-ema continues it");
    if (!had_average(*resumed) && options_.parallel.ema_decay)
      notice("it has no moving average; a new one starts from its weights");
  }
  const Start start = start_from(net_, options_, resumed, folder_.writes(), tell);
  state_.step = start.step, state_.skipped = start.skipped;
  state_.epoch = start.epoch, state_.batch_in_epoch = start.batch_in_epoch;
  state_.best_top1 = start.best_top1;
  writes_ = start.writes;
  if (!continued_from && folder_.has_checkpoints())
    throw Error(
        ErrorCode::usage,
        "'" + folder_.path() + "' already contains a run; continue with --resume auto, or choose another --output-dir");
  if (options_.dry_run) most_steps_ = state_.step + 1;
  prepare_batches(net_, &train_, test_, options_.optimizer);
  if (callbacks_.on_start) callbacks_.on_start(net_, options_);
  folder_.begin(to_toml(config), continued_from);
}

void TrainingRun::train() {
  interrupted_ = stop_.asked_now();  // planning may have taken long
  while (!finished() && !interrupted_) {
    train_epoch();
    if (alone_ || stopped() || !evaluate()) {
      interrupted_ = true;
      break;
    }
    if (state_.batch_in_epoch == batches_) ++state_.epoch, state_.batch_in_epoch = 0;
    const bool due = (options_.save_every_epochs > 0 && state_.epoch % options_.save_every_epochs == 0) ||
                     (options_.save_every_steps > 0 && state_.step % options_.save_every_steps == 0);
    if (last_eval_->best) save("best", false);
    if (due && !finished()) save_last(false);
  }
  if (!last_eval_ && !interrupted_) interrupted_ = !evaluate();  // no steps were left to train
  if (unsaved_) save_last(true);
}

void TrainingRun::train_epoch() {
  if (state_.batch_in_epoch >= batches_) return;
  const std::int64_t first = state_.batch_in_epoch;
  train_.start(state_.epoch, state_.batch_in_epoch);
  meter_.mark();
  meter_.run();
  while (state_.batch_in_epoch < batches_ && !out_of_steps() && !stopped()) {
    const Batch* batch = train_.next();
    if (batch == nullptr) {
      wait_ended();
      break;
    }
    if (state_.batch_in_epoch == first) epoch_stats_ = {};
    train_one_step(*batch);
    const bool last = state_.batch_in_epoch == batches_ || out_of_steps();
    if (meter_.warmup_ends()) {
      collect();
      meter_.end_warmup();
    }
    if (last || (options_.print_freq > 0 && (state_.batch_in_epoch - 1) % options_.print_freq == 0)) report();
    if (options_.save_every_steps > 0 && state_.step % options_.save_every_steps == 0 && !last) save_last(false);
  }
  if (!alone_) collect();
  meter_.pause();
  if (!alone_) judge_skipped(first);
}

// A run that skips every step has not trained and must not exit with status 0.
void TrainingRun::judge_skipped(std::int64_t first) {
  const std::int64_t skipped = epoch_stats_.skipped, trained = state_.batch_in_epoch - first;
  if (skipped == 0 || trained == 0) return;
  const std::string message = fmt::format("{} of {} steps of epoch {} were skipped", skipped, trained, state_.epoch);
  const bool whole = state_.batch_in_epoch == batches_;
  const bool all = (whole && skipped == batches_) || ((whole || out_of_steps()) && state_.skipped == state_.step);
  // A float16 run may first lower its loss scale.
  const bool scaling = epoch_stats_.samples > 0 && epoch_stats_.loss_scale.value_or(0) >= 1;
  if (all && !scaling) throw Error(ErrorCode::nonfinite, message + ": no step had a finite loss and gradient");
  if (options_.parallel.on_nonfinite == OnNonfinite::skip) notice(message + ": a loss or gradient was not finite");
}

// The loader returned no batch. With several ranks, the others may have begun the step already; they cannot finish it
// without this rank.
void TrainingRun::wait_ended() {
  if (group() != nullptr)
    if (const auto failure = group()->failure()) throw *failure;
  if (!stop_.here()) throw Error(ErrorCode::data, "the loader ended its epoch early");
  alone_ = group() != nullptr;
}

void TrainingRun::train_one_step(const Batch& batch) {
  if (options_.unsaved != nullptr && !options_.dry_run) options_.unsaved->store(true);
  Optimizer optimizer = options_.optimizer;
  const double per_step = 1.0 / static_cast<double>(batches_);
  lr_ = static_cast<double>(learning_rate(optimizer)) *
        options_.schedule.factor(static_cast<double>(state_.step) * per_step, per_step);
  learning_rate(optimizer) = static_cast<float>(lr_);
  net_.train_step(batch, optimizer);
  ++state_.step, ++state_.batch_in_epoch;
  unsaved_ = true;
  meter_.add(batch.size());
}

bool TrainingRun::evaluate() {
  collect();
  if (!evaluate_once(/*average=*/false)) return false;
  if (!options_.parallel.ema_decay) return true;
  net_.swap_average();
  const bool done = evaluate_once(/*average=*/true);
  net_.swap_average();
  return done;
}

bool TrainingRun::evaluate_once(bool average) {
  std::optional<EvalReport> report = evaluate_all(net_, test_, options_.dry_run ? 1 : 0, stop_);
  if (!report) return false;
  report->epoch = state_.epoch;
  report->step = state_.step;
  report->average = average;
  report->best = average == options_.parallel.ema_decay.has_value() && report->stats.accuracy1() > state_.best_top1;
  if (report->best) state_.best_top1 = report->stats.accuracy1();
  last_eval_ = report;
  unsaved_ = true;
  record(to_record(*report));
  if (callbacks_.on_eval) callbacks_.on_eval(*report);
  return true;
}

void TrainingRun::collect() {
  const Stats stats = net_.take_stats();
  if (!std::isfinite(stats.loss_sum) && options_.parallel.on_nonfinite == OnNonfinite::abort)
    throw Error(ErrorCode::nonfinite, fmt::format("the loss is not finite at step {}", state_.step));
  state_.skipped += stats.skipped;
  add(recent_, stats);
  add(epoch_stats_, stats);
}

void TrainingRun::report() {
  collect();
  StepReport report;
  report.epoch = state_.epoch;
  report.batch = state_.batch_in_epoch - 1;
  report.batches = batches_;
  report.step = state_.step;
  report.lr = lr_;
  report.images_per_second = meter_.rate_since_mark();
  const double rate = meter_.rate();
  const std::int64_t left = (batches_ - state_.batch_in_epoch) * options_.batch_size;
  report.eta_seconds = rate > 0 ? static_cast<double>(left) / rate : 0;
  report.recent = recent_;
  report.epoch_so_far = epoch_stats_;
  report.phases = net_.take_phase_times();
  add(phases_, report.phases);
  recent_ = {};
  record(to_record(report));
  if (callbacks_.on_step) callbacks_.on_step(report);
  meter_.mark();
}

void TrainingRun::save(const std::string& name, bool must) {
  if (!writes_) return;
  if (!alone_) collect();
  const bool was_running = meter_.running();
  bool saved = false;
  meter_.pause();
  try {
    state_.loss_scale = net_.loss_scale();
    const Checkpoint checkpoint{state_, net_.weights(), net_.optimizer_state(),
                                options_.parallel.ema_decay ? net_.average_weights() : NamedTensors{}};
    require_finite(checkpoint.weights);
    if (folder_.writes()) {
      const Busy busy(group());
      save_checkpoint(folder_.checkpoint(name), checkpoint);
      good_checkpoint_ = folder_.checkpoint(name);
      if (callbacks_.on_checkpoint) callbacks_.on_checkpoint(good_checkpoint_);
    }
    saved = true;
  } catch (const Error& error) {
    if (must || error.code() != ErrorCode::io) throw;
    notice(std::string("this checkpoint was not written: ") + error.what());
  }
  if (group() != nullptr && !alone_) saved = group()->from_first(saved ? "1" : "0") == "1";
  if (saved && name == "last") unsaved_ = false;
  if (was_running) meter_.run();
}

void TrainingRun::save_last(bool must) {
  save("last", must);
  if (options_.checkpoint_hist == 0) return;
  save(fmt::format("step-{}", state_.step), must);
  folder_.keep_newest(options_.checkpoint_hist);
}

void TrainingRun::record(const nlohmann::ordered_json& metrics) {
  try {
    folder_.append_metrics(metrics);
  } catch (const Error& error) {
    if (!metrics_failed_) notice(error.what());
    metrics_failed_ = true;
  }
}

void TrainingRun::write_trace() {
  if (options_.trace_file.empty()) return;
  const std::int64_t steps = net_.write_trace(options_.trace_file);
  if (steps == 0)
    notice(fmt::format("'{}' contains no step: the run ended before step {}, the first of --trace-steps",
                       options_.trace_file, options_.parallel.trace_first));
}

void TrainingRun::notice(const std::string& text) const {
  if (callbacks_.on_message) callbacks_.on_message(text);
}

RunSummary TrainingRun::summary() const {
  RunSummary summary = describe(net_, options_);
  summary.epochs = state_.epoch;
  summary.steps = state_.step;
  summary.skipped_steps = state_.skipped;
  summary.seconds_train = meter_.seconds();
  summary.images_per_second = meter_.rate();
  const double none = std::numeric_limits<double>::quiet_NaN();
  summary.train_loss = epoch_stats_.samples > 0 ? epoch_stats_.loss() : none;
  summary.test_loss = summary.top1 = summary.top5 = none;
  if (last_eval_) set_result(summary, last_eval_->stats);
  summary.weights_sha256 = weights_sha256(net_.weights());
  if (folder_.writes()) summary.checkpoint = folder_.checkpoint("last");
  summary.interrupted = interrupted_;
  if (options_.profile) summary.layers = net_.layer_times();
  if (options_.profile && summary.layers.empty())
    notice(fmt::format("the profile contains no step: the run ended before step {}, the first of --trace-steps",
                       options_.parallel.trace_first));
  summary.output_dir = folder_.path();
  summary.phases = phases_;
  return summary;
}

}  // namespace dp
