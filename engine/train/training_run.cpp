#include "engine/train/training_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "data/augment/policies.h"
#include "dp/error.h"
#include "dp/shell.h"
#include "engine/train/data_identity.h"
#include "engine/train/host_memory.h"
#include "engine/train/passes.h"
#include "engine/train/record/records.h"
#include "engine/train/record/run_config.h"

namespace dp {

namespace {

std::vector<std::string> names_of(const std::vector<OwnMetric>& metrics) {
  std::vector<std::string> names;
  for (const OwnMetric& metric : metrics) names.push_back(metric.name);
  return names;
}

}  // namespace

TrainingRun::TrainingRun(DataParallel& net, Loader& train, Loader& test, const TrainerOptions& given,
                         const TrainerOptions& options, const nlohmann::ordered_json& environment,
                         const TrainerCallbacks& callbacks)
    : net_(net),
      train_(train),
      test_(test),
      given_(given),
      options_(options),
      environment_(environment),
      callbacks_(callbacks),
      group_(options.parallel.process_group.get()),
      notices_(callbacks.on_message),
      folder_(options.dry_run ? "" : options.output_dir, names_of(options.metrics)),
      page_(folder_, notices_, group_),
      stop_(options.stop, options.parallel.process_group),
      finish_(options.finish, options.parallel.process_group),
      batches_(train.batches_per_epoch()),
      most_steps_(options.max_steps),
      meter_(/*by_steps=*/options.parallel.process_group != nullptr),
      save_timer_(options.save_every_seconds, group_) {
  state_.model = net.model().name();
  state_.dataset = options.dataset_name;
  state_.seed = options.parallel.seed;
  state_.global_batch = options.batch_size;
  if (folder_.writes() || !options.resume.empty() || group_ != nullptr) {
    const Busy busy(group_);
    state_.data = identity_of(&train.dataset(), test.dataset());
  }
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

// The checkpoints of a save: `last`, and step-N if several are kept.
std::vector<std::string> last_names(const TrainerOptions& options, std::int64_t step) {
  std::vector<std::string> names{"last"};
  if (options.checkpoint_hist > 0) names.push_back(fmt::format("step-{}", step));
  return names;
}

void write_trace(DataParallel& net, const TrainerOptions& options, const Notices& notices) {
  if (net.write_trace(options.trace_file) == 0)
    notices.tell(fmt::format("'{}' contains no step: the run ended before step {}, the first of --trace-steps",
                             options.trace_file, options.parallel.trace_first));
}

}  // namespace

RunSummary TrainingRun::execute() {
  const Unsaved unsaved(options_.unsaved);
  begin();
  first_step_ = state_.step;
  try {
    train();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::nonfinite) keep_finished_steps(error.what());
    notices_.count_warnings();
    if (error.code() != ErrorCode::nonfinite || (group_ != nullptr && !group_->leads())) throw;
    try {
      take_written(/*wait=*/true, /*must=*/false);
    } catch (...) {  // the error that ends the run is thrown below
    }
    const std::string where = good_checkpoint_.empty() ? "there is no checkpoint yet"
                                                       : "the last good checkpoint is '" + good_checkpoint_ + "'";
    const bool skips = options_.parallel.on_nonfinite == OnNonfinite::skip;
    throw Error(
        error.code(),
        error.what() + ("; " + where) + "; lower the learning rate" + (skips ? "" : ", or use --on-nonfinite skip"),
        error.others());
  } catch (...) {
    keep_finished_steps(message_of(std::current_exception()));
    notices_.count_warnings();
    throw;
  }
  if (!failure_.empty()) {
    try {
      if (trained()) conclude(), report_kept();
    } catch (const Error& error) {
      notices_.tell(error.what());
    }
    stop_.rethrow();
  }
  RunSummary result = conclude();
  // This must be last: it ends the other ranks, and all further calls of this rank in the group.
  if (alone_)
    group_->fail(Error(ErrorCode::device,
                       fmt::format("interrupted while waiting for data; the run is saved at step {}", state_.step)));
  return result;
}

RunSummary TrainingRun::conclude() {
  list_bad_images();
  writer_.free_memory();  // the digest of the weights takes as much
  RunSummary result = summary();
  const std::string text = to_json(result) + "\n";
  if (folder_.writes()) {
    write_file_atomically(folder_.path() + "/summary.json", text);
    const Busy busy(group_);
    notices_.attempt([&] { end_environment(folder_.path(), environment_, result.end); });
    page_.write(test_.dataset(), /*last=*/true);
  }
  notices_.count_warnings();
  if (!options_.summary_file.empty()) write_file_atomically(options_.summary_file, text);
  if (!alone_ && !options_.trace_file.empty()) write_trace(net_, options_, notices_);
  return result;
}

void TrainingRun::keep_finished_steps(const std::string& failure) noexcept {
  if (!trained() || cannot_save_ || (group_ != nullptr && !group_->leads())) return;
  try {
    failure_ = failure;
    interrupted_ = true;
    alone_ = group_ != nullptr;
    try {
      settle(/*must=*/false);
    } catch (...) {
      if (cannot_save_) throw;  // otherwise a callback has failed again
    }
    try {
      if (unsaved_) save(last_names(options_, state_.step), /*must=*/true);
    } catch (...) {
      if (unsaved_) throw;  // otherwise a callback has failed again
    }
    conclude();
    report_kept();
  } catch (...) {  // a replica or another rank has failed, or files cannot be written: the last checkpoint stays
  }
}

void TrainingRun::report_kept() const {
  if (!folder_.writes() || unsaved_) return;
  notices_.tell(fmt::format("the finished steps are saved at step {}; continue with --resume {}{}{}", state_.step,
                            path_argument(folder_.path()), options_.resumed_with.empty() ? "" : " ",
                            options_.resumed_with));
}

void TrainingRun::train() {
  interrupted_ = stop_.asked_now();  // planning may have taken long
  save_timer_.restart();
  if (finished() && !interrupted_)
    notices_.tell(fmt::format("nothing is left to train: the run is at step {}, after {} of {} epochs", state_.step,
                              state_.epoch, std::max(state_.epoch, options_.epochs)));
  while (!finished() && !interrupted_) {
    train_epoch();
    if (!alone_ && !stop_.asked() && group_ != nullptr && options_.finish != nullptr) ended_ = finish_.asked_now();
    const std::int64_t epochs = state_.epoch + 1;  // with the one that has ended, perhaps early
    const bool evaluates = options_.eval_every > 0 &&
                           (ended_ || out_of_steps() || epochs >= options_.epochs || epochs % options_.eval_every == 0);
    if (alone_ || stop_.asked() || (evaluates && !evaluate())) {
      interrupted_ = true;
      break;
    }
    report_epoch();
    list_bad_images();
    if (evaluates) {
      state_.since_best = last_eval_->best ? 0 : state_.since_best + 1;
      if (options_.schedule.kind == ScheduleKind::plateau && epoch_.test)
        state_.plateau.evaluated(options_.schedule, static_cast<double>(learning_rate(options_.optimizer)),
                                 epoch_.test->stats.loss());
    }
    if (state_.batch_in_epoch == batches_) ++state_.epoch, state_.batch_in_epoch = 0;
    const bool due = (options_.save_every_epochs > 0 && state_.epoch % options_.save_every_epochs == 0) ||
                     (options_.save_every_steps > 0 && state_.step % options_.save_every_steps == 0) ||
                     (writes_ && save_timer_.due(/*reported=*/true));
    std::vector<std::string> names;
    if (evaluates && last_eval_->best) names.emplace_back("best");
    if (due && !finished())
      for (std::string& name : last_names(options_, state_.step)) names.push_back(std::move(name));
    save(names, /*must=*/false);
  }
  if (out_of_patience()) notices_.tell("ended " + end());
  if (!last_eval_ && !interrupted_ && options_.eval_every > 0) {  // no steps were left to train
    const bool whole = state_.batch_in_epoch == 0 && state_.epoch > 0;
    state_.epoch -= whole;  // the evaluation belongs to the last epoch that was trained
    interrupted_ = !evaluate();
    state_.epoch += whole;
  }
  if (interrupted_ && !alone_) failure_ = stop_.cause();
  settle(/*must=*/false);
  // Rank 0 alone has the records of a finished run that is resumed.
  if (group_ != nullptr && !alone_) unsaved_ = group_->from_first(unsaved_ ? "1" : "0") == "1";
  if (unsaved_ && (failure_.empty() || trained())) save(last_names(options_, state_.step), /*must=*/failure_.empty());
  settle(/*must=*/false);
}

std::string TrainingRun::end() const {
  if (!failure_.empty()) return "error: " + failure_;
  if (interrupted_) return "interrupted";
  if (state_.epoch >= options_.epochs || out_of_steps()) return "complete";
  if (out_of_patience())
    return fmt::format("early: {} evaluation{} without a {} (--patience)", state_.since_best,
                       state_.since_best == 1 ? "" : "s", state_.best_loss ? "lower loss" : "higher top-1");
  return "early: requested by the program";
}

void TrainingRun::train_epoch() {
  if (state_.batch_in_epoch >= batches_) return;
  const std::int64_t first = state_.batch_in_epoch;
  train_.start(state_.epoch, state_.batch_in_epoch);
  epoch_ = {};
  meter_.mark();
  meter_.run();
  const Meter::Reading begin = meter_.read();
  while (state_.batch_in_epoch < batches_ && !out_of_steps() && !ended_) {
    const Batch* const batch = take_batch(/*first=*/state_.batch_in_epoch == first);
    if (batch == nullptr) break;
    if (state_.batch_in_epoch == first) epoch_stats_ = {};
    train_one_step(*batch);
    const bool last = state_.batch_in_epoch == batches_ || out_of_steps();
    if (meter_.warmup_ends()) {
      collect();
      meter_.end_warmup();
    }
    const bool reports = last || (options_.print_freq > 0 && (state_.batch_in_epoch - 1) % options_.print_freq == 0);
    if (reports) report();
    if (!last && ((options_.save_every_steps > 0 && state_.step % options_.save_every_steps == 0) ||
                  (writes_ && save_timer_.due(/*reported=*/reports))))
      save(last_names(options_, state_.step), /*must=*/false);
    take_written(/*wait=*/false, /*must=*/false);
    ended_ = group_ == nullptr && finish_.here();
  }
  if (!alone_) collect();
  meter_.pause();
  epoch_.epoch = state_.epoch;
  epoch_.seconds = meter_.read().seconds - begin.seconds;
  epoch_.images_per_second = Meter::rate_between(begin, meter_.read());
  epoch_.loading_share = Meter::loading_between(begin, meter_.read());
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
  if (options_.parallel.on_nonfinite == OnNonfinite::skip)
    notices_.tell(message + ": a loss or gradient was not finite");
}

// Returns null after a stop. A rank whose batch cannot be prepared must report it before the others begin that step.
// Requests take effect one call later, so each rank also waits for the batch after this one.
const Batch* TrainingRun::take_batch(bool first) {
  const auto asked = meter_.now();
  bool arrived = true;
  if (group_ != nullptr) {
    std::optional<Busy> busy;
    if (first) busy.emplace(group_);
    const std::int64_t left = most_steps_ > 0 ? most_steps_ - state_.step : batches_;
    arrived = stop_.await(train_, std::min<std::int64_t>(left, 2));
  }
  double waited = std::chrono::duration<double>(meter_.now() - asked).count();
  const Batch* batch = nullptr;
  if (arrived) {
    if (first ? stop_.asked_now() : stop_.asked()) return nullptr;
    const auto taken = meter_.now();
    batch = next_batch(train_, stop_);
    waited += std::chrono::duration<double>(meter_.now() - taken).count();
  }
  meter_.add_loading(waited);
  if (batch == nullptr && !stop_.failed()) wait_ended();
  return batch;
}

// The loader returned no batch. With several ranks, the others may have begun the step already; they cannot finish it
// without this rank.
void TrainingRun::wait_ended() {
  if (group_ != nullptr)
    if (const auto failure = group_->failure()) throw *failure;
  if (!stop_.here()) throw Error(ErrorCode::data, "the loader ended its epoch early");
  alone_ = group_ != nullptr;
}

void TrainingRun::train_one_step(const Batch& batch) {
  if (options_.unsaved != nullptr && !options_.dry_run) options_.unsaved->store(true);
  Optimizer optimizer = options_.optimizer;
  const double per_step = 1.0 / static_cast<double>(batches_);
  // The step number would be wrong if an earlier part of the run had another batch size.
  const std::int64_t batches_before = state_.epoch * batches_ + state_.batch_in_epoch;
  lr_ = options_.schedule.rate(static_cast<double>(learning_rate(optimizer)) * state_.plateau.factor,
                               static_cast<double>(batches_before) * per_step, per_step);
  learning_rate(optimizer) = static_cast<float>(lr_);
  net_.train_step(batch, optimizer);
  ++state_.step, ++state_.batch_in_epoch;
  unsaved_ = true;
  meter_.add(batch.global_size());
}

void TrainingRun::report_epoch() {
  if (epoch_.seconds == 0 && !epoch_.test) return;
  epoch_.step = state_.step;
  epoch_.train = epoch_stats_;
  epoch_.lr = lr_;
  if (callbacks_.on_epoch) callbacks_.on_epoch(epoch_);
  page_.write(test_.dataset(), /*last=*/false);
  constexpr double kMuch = 0.1, kLong = 1;  // not for a short run, in which the first batch is much of the time
  if (epoch_.loading_share < kMuch || epoch_.seconds < kLong || std::exchange(loading_noticed_, true)) return;
  notices_.tell(fmt::format("training waited {:.0f} % of the time for data; raise --workers (now {}){}",
                            100 * epoch_.loading_share, options_.workers,
                            options_.images_on == ImagesOn::device || train_.dataset().varies() ||
                                    !option_of_host(train_.dataset().augmentation(), options_).empty()
                                ? ""
                                : ", or use --images-on device"));
}

bool TrainingRun::evaluate() {
  collect();
  if (!evaluate_once(/*average=*/false)) return false;
  if (!options_.parallel.ema_decay) return true;
  net_.swap_average();
  bool done = false;
  try {
    done = evaluate_once(/*average=*/true);
  } catch (...) {
    cannot_save_ = true;
    try {
      if (group_ == nullptr) net_.swap_average(), cannot_save_ = false;
    } catch (const Error&) {  // the replicas have failed
    }
    throw;
  }
  net_.swap_average();
  return done;
}

namespace {

// Whether an evaluation is the best one so far; it then becomes the one to beat.
bool is_best(const Stats& stats, TrainState& state) {
  if (stats.has_labels) {
    if (!(stats.accuracy1() > state.best_top1)) return false;
    state.best_top1 = stats.accuracy1();
  } else {
    const double loss = stats.loss();
    if (!std::isfinite(loss) || (state.best_loss && loss >= *state.best_loss)) return false;
    state.best_loss = loss;
  }
  return true;
}

}  // namespace

bool TrainingRun::evaluate_once(bool average) {
  std::optional<EvaluatedLogits> outputs;
  std::optional<EvalReport> report =
      evaluate_all(net_, test_, options_.dry_run ? 1 : 0, stop_, options_.test_augmentation, options_.metrics, outputs,
                   callbacks_.on_work);
  if (!report) return false;
  page_.take_predictions(outputs ? std::move(*outputs) : net_.take_logits(), net_.model().output().numel(),
                         test_.dataset(), state_.step, average);
  report->epoch = state_.epoch;
  report->step = state_.step;
  report->average = average;
  const bool again = state_.step == continued_from_ && recorded_evaluations_.contains(average);
  report->best = average == options_.parallel.ema_decay.has_value() && is_best(report->stats, state_);
  last_eval_ = report;
  (average ? epoch_.average : epoch_.test) = report;
  if (!again) {
    unsaved_ = true;
    record(to_record(*report));
  }
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
  report.batches = most_steps_ > 0 ? std::min(batches_, state_.batch_in_epoch + most_steps_ - state_.step) : batches_;
  report.step = state_.step;
  report.lr = lr_;
  report.images_per_second = meter_.rate_since_mark();
  const double rate = meter_.rate();
  report.loading_share = meter_.loading_since_mark();
  const std::int64_t left = (report.batches - state_.batch_in_epoch) * options_.batch_size;
  report.eta_seconds = rate > 0 ? static_cast<double>(left) / rate : 0;
  report.seconds_train = seconds_before_ + meter_.seconds();
  report.recent = recent_;
  report.epoch_so_far = epoch_stats_;
  report.phases = net_.take_phase_times();
  add(phases_, report.phases);
  recent_ = {};
  record(to_record(report));
  if (callbacks_.on_step) callbacks_.on_step(report);
  meter_.mark();
}

void TrainingRun::save(const std::vector<std::string>& names, bool must) {
  if (!writes_ || names.empty()) return;
  settle(/*must=*/false);
  if (!alone_) collect();
  const bool was_running = meter_.running();
  meter_.pause();
  try {
    state_.loss_scale = net_.loss_scale();
    Checkpoint& checkpoint = writer_.next();
    checkpoint.state = state_;
    if (!checkpoint.model)
      checkpoint.model = net_.model(), checkpoint.preprocessing = preprocessing_of(test_.dataset());
    std::function<void()> copy = net_.snapshot(checkpoint);
    std::vector<std::string> folders;
    for (const std::string& name : names) folders.push_back(folder_.checkpoint(name));
    if (folder_.writes()) writer_.start(std::move(folders), std::move(copy));
  } catch (const Error&) {
    cannot_save_ = true;
    throw;
  }
  in_flight_ = true;
  if (std::ranges::count(names, "last") > 0) unsaved_ = false, save_timer_.restart();
  if (must || options_.sync_checkpoints) settle(must);
  if (was_running) meter_.run();
}

void TrainingRun::take_written(bool wait, bool must) {
  const std::vector<CheckpointWriter::Written> written = writer_.take(wait);
  std::vector<std::string> saved;
  const std::string last = folder_.checkpoint("last");
  for (const auto& [folder, failure] : written) {
    if (folder == last) last_failed_ = failure != nullptr;
    if (failure == nullptr) {
      saved.push_back(good_checkpoint_ = folder);
      continue;
    }
    try {
      std::rethrow_exception(failure);
    } catch (const Error& error) {
      cannot_save_ = must || error.code() != ErrorCode::io;
      if (cannot_save_) throw;
      notices_.warn(std::string("this checkpoint was not written: ") + error.what());
    }
  }
  if (!saved.empty()) notices_.attempt([this] { folder_.note_checkpoint(); });
  if (!saved.empty() && options_.checkpoint_hist > 0)
    notices_.attempt([this] { folder_.keep_newest(options_.checkpoint_hist); });
  if (!written.empty()) notices_.warn_unless_empty(folder_.space_warning(checkpoint_bytes(net_.model(), options_)));
  if (last_failed_) unsaved_ = true;
  for (const std::string& folder : saved)
    if (callbacks_.on_checkpoint) callbacks_.on_checkpoint(folder);
}

void TrainingRun::settle(bool must) {
  if (!std::exchange(in_flight_, false)) return;
  if (folder_.writes()) {
    const Busy busy(group_);
    take_written(/*wait=*/true, must);
  }
  if (group_ != nullptr && !alone_) last_failed_ = group_->from_first(last_failed_ ? "1" : "0") == "1";
  if (last_failed_) unsaved_ = true;
}

void TrainingRun::record(const nlohmann::ordered_json& metrics) {
  notices_.attempt([&] { folder_.append_metrics(metrics); });
}

RunSummary TrainingRun::summary() const {
  RunSummary summary = describe(net_, options_);
  summary.epochs = state_.epoch;
  summary.steps = state_.step;
  summary.skipped_steps = state_.skipped;
  summary.seconds_train = seconds_before_ + meter_.seconds();
  summary.images_per_second = meter_.rate();
  const double none = std::numeric_limits<double>::quiet_NaN();
  summary.train_loss = epoch_stats_.samples > 0 ? epoch_stats_.loss() : none;
  summary.test_loss = summary.top1 = summary.top5 = none;
  if (last_eval_) set_result(summary, *last_eval_);
  summary.weights_sha256 = weights_sha256(net_.weights());
  if (folder_.writes()) summary.checkpoint = folder_.checkpoint("last");
  if (train_.dataset().replaced() || test_.dataset().replaced())
    summary.bad_images.emplace(bad_images_.all().begin(), bad_images_.all().end());
  summary.interrupted = interrupted_;
  summary.end = end();
  if (options_.profile) summary.layers = net_.layer_times();
  if (options_.profile && summary.layers.empty())
    notices_.tell(fmt::format("the profile contains no step: the run ended before step {}, the first of --trace-steps",
                              options_.parallel.trace_first));
  summary.output_dir = folder_.path();
  summary.phases = phases_;
  return summary;
}

}  // namespace dp
