// Training and evaluation passes, the clock that measures them, and requests to stop them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include "dp/error.h"
#include "dp/loader.h"
#include "dp/process_group.h"
#include "dp/trainer.h"
#include "engine/base/test_modes.h"

namespace dp {

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

// The text of an exception.
inline std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return "out of host memory";
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

// A request to stop a run: from the program, or after an error that leaves the weights intact. Ranks combine their
// requests, so the answer is the same on every rank.
class StopRequest {
 public:
  // `flag` may be null.
  StopRequest(const std::atomic<int>* flag, std::shared_ptr<ProcessGroup> group)
      : flag_(flag), group_(std::move(group)) {}

  // With several ranks, every rank makes the same calls, and a request takes effect one call later.
  bool asked() {
    if (!asked_) asked_ = group_ ? group_->agree(here()) : here();
    return asked_;
  }
  // The same without the delay. Waits for all ranks.
  bool asked_now() {
    if (!group_) return asked();
    if (asked_) return true;
    for (const std::string& wish : group_->exchange(here() ? "1" : "0")) asked_ = asked_ || wish == "1";
    return asked_;
  }
  // Whether this process received a request or has failed.
  bool here() const { return failure_ || (flag_ != nullptr && flag_->load() != 0); }

  // Requests a stop because of the current exception.
  void fail() { failure_ = std::current_exception(); }
  bool failed() const { return failure_ != nullptr; }
  // Waits for the next `count` batches of a loader; if one cannot be prepared, the request is made. Returns false if
  // the loader's `stop` ended the wait.
  bool await(Loader& loader, std::int64_t count) {
    try {
      return failed() || loader.await(count);
    } catch (...) {
      fail();
      return true;
    }
  }
  // The message of the failure that caused the stop. Empty if the program requested it. Every rank calls this.
  std::string cause() {
    constexpr std::size_t kLongest = 2000;  // an exchange has a limit
    const std::string mine = failure_ ? "!" + message_of(failure_).substr(0, kLongest) : "";
    std::string first = mine;
    if (group_)
      for (const std::string& each : group_->exchange(mine))
        if (first.empty()) first = each;
    other_failed_ = !first.empty() && !failure_;
    return first.empty() ? first : first.substr(1);
  }
  // Throws the failure, if any. Every rank must call it after cause(). It first waits for all ranks, because a reported
  // failure ends all later calls in the group. The ranks without a failure then wait for the report.
  void rethrow() const {
    if (group_ && (failure_ || other_failed_)) try {
        group_->exchange("");
      } catch (const Error&) {
        if (!failure_) throw;
      }
    if (failure_) std::rethrow_exception(failure_);
    if (other_failed_) group_->exchange("");
  }

 private:
  const std::atomic<int>* flag_;
  std::shared_ptr<ProcessGroup> group_;
  bool asked_ = false, other_failed_ = false;
  std::exception_ptr failure_;
};

// The time between saves.
class SaveTimer {
 public:
  // `seconds` between saves; 0: saves do not depend on time. `group` may be null.
  SaveTimer(std::int64_t seconds, ProcessGroup* group) : seconds_(seconds), group_(group) {}

  void restart() { since_ = time_.now(); }
  // Call it after a step and between epochs. With several ranks, rank 0's clock decides. Its verdict is sent only if
  // `reported`, because the ranks exchange data then anyway; otherwise the result is false.
  bool due(bool reported) const {
    if (seconds_.count() == 0 || (group_ != nullptr && !reported)) return false;
    const bool passed = time_.now() - since_ >= seconds_;
    return group_ == nullptr ? passed : group_->from_first(passed ? "1" : "0") == "1";
  }

 private:
  engine::TimeSource& time_ = *engine::test_modes().time;
  const std::chrono::seconds seconds_;
  ProcessGroup* const group_;
  engine::TimeSource::TimePoint since_{};
};

// Training time and throughput. The clock is paused during evaluations and saves.
class Meter {
 public:
  // `by_steps`: the warm-up has a fixed number of steps, so that it ends at the same step on every rank.
  explicit Meter(bool by_steps) : by_steps_(by_steps) {}

  engine::TimeSource::TimePoint now() const { return time_.now(); }

  void run();  // idempotent
  void pause();
  bool running() const { return running_; }
  void add(std::int64_t images) { images_ += images, ++steps_; }

  // Whether the warm-up ends now: after 10 steps or, unless by_steps, after one second. The caller waits for the
  // devices, then calls end_warmup().
  bool warmup_ends() const { return !warm_ && (steps_ >= 10 || (!by_steps_ && steps_ > 0 && seconds() >= 1)); }
  void end_warmup();

  void add_loading(double seconds) { loading_ += seconds; }  // part of the running time

  struct Reading {
    double seconds = 0;
    std::int64_t images = 0;
    double loading = 0;  // seconds
  };
  Reading read() const { return {seconds(), images_, loading_}; }
  static double rate_between(const Reading& from, const Reading& to);     // images per second
  static double loading_between(const Reading& from, const Reading& to);  // part of the time, 0 to 1

  double loading_since_mark() const { return loading_between(mark_, read()); }
  double seconds() const;
  double rate() const;             // images per second after the warm-up; since the start if no images followed it
  double rate_since_mark() const;  // since mark(); rate() if no images followed it
  void mark();

 private:
  engine::TimeSource& time_ = *engine::test_modes().time;
  bool by_steps_;
  double passed_ = 0, loading_ = 0;
  engine::TimeSource::TimePoint since_{};
  bool running_ = false;
  bool warm_ = false;
  std::int64_t images_ = 0, steps_ = 0;
  Reading warmup_end_, mark_;
};

// Functions for training and evaluation.

using OnWork = std::function<void(const WorkReport&)>;

// The threads of a loader beside these replicas: as many as cores are left, 1 to 4.
int loader_threads(const DataParallelOptions& parallel);

// The next batch of the loader's epoch; null at its end. If the batch cannot be prepared, requests a stop and returns
// null.
const Batch* next_batch(Loader& loader, StopRequest& stop);

// Evaluates the whole test set, or its first `most_batches` batches if that is above 0. Returns nothing if a stop was
// requested. Clears the statistics and phase times of `net`. `on_work` may be empty.
// `tta`: the views of each image. `own`: further metrics. `outputs`: receives the outputs if metrics were computed from
// them, or if they are averages.
std::optional<EvalReport> evaluate_all(DataParallel& net, Loader& test, std::int64_t most_batches, StopRequest& stop,
                                       TestAugmentation tta, const std::vector<OwnMetric>& own,
                                       std::optional<EvaluatedLogits>& outputs, const OnWork& on_work);

// Allocates the memory for every batch size of a run, including short last batches. `on_work` may be empty.
void prepare_batches(DataParallel& net, const Loader* train, const Loader& test, const Optimizer& optimizer,
                     const OnWork& on_work);

std::int64_t eval_batch_size(const TrainerOptions& options);

// The summary's fields that are known before the first step.
RunSummary describe(const DataParallel& net, const TrainerOptions& options);
void set_result(RunSummary& summary, const EvalReport& test);

}  // namespace dp
