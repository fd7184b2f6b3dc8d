// Training and evaluation passes, and the clock that measures them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "dp/trainer.h"
#include "engine/train/stop_request.h"

namespace dp {

// Training time and throughput. The clock is paused during evaluations and saves.
class Meter {
 public:
  // `by_steps`: the warm-up has a fixed number of steps, so that it ends at the same step on every rank.
  explicit Meter(bool by_steps) : by_steps_(by_steps) {}

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
  using Clock = std::chrono::steady_clock;

  bool by_steps_;
  double passed_ = 0, loading_ = 0;
  Clock::time_point since_{};
  bool running_ = false;
  bool warm_ = false;
  std::int64_t images_ = 0, steps_ = 0;
  Reading warmup_end_, mark_;
};

// Functions for training and evaluation.

using OnWork = std::function<void(const WorkReport&)>;

// The next batch of the loader's epoch; null at its end. If the batch cannot be prepared, requests a stop and returns
// null.
const Batch* next_batch(Loader& loader, StopRequest& stop);

// Evaluates the whole test set, or its first `most_batches` batches if that is above 0. Returns nothing if a stop was
// requested. Clears the statistics and phase times of `net`. `on_work` may be empty.
std::optional<EvalReport> evaluate_all(DataParallel& net, Loader& test, std::int64_t most_batches, StopRequest& stop,
                                       const OnWork& on_work);

// Allocates the memory for every batch size of a run, including short last batches. `on_work` may be empty.
void prepare_batches(DataParallel& net, const Loader* train, const Loader& test, const Optimizer& optimizer,
                     const OnWork& on_work);

std::int64_t eval_batch_size(const TrainerOptions& options);

// The summary's fields that are known before the first step.
RunSummary describe(const DataParallel& net, const TrainerOptions& options);
void set_result(RunSummary& summary, const Stats& test);

}  // namespace dp
