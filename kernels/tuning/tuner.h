// Chooses the fastest candidate for an op on this device. Tries each candidate once, on random data, and caches the
// choice. DP_TUNING_SECONDS limits the total time of a process's trials.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "dp/device.h"
#include "kernels/tuning/candidates.h"
#include "kernels/tuning/trial.h"
#include "kernels/tuning/tuning_cache.h"

namespace dp::kernels::cuda {

// The name of the problem that an op solves, the same for all candidates.
std::string problem_of(const OpDesc& desc, const CudaOp& op);

// Thread-safe for all replicas. One thread tries at a time; the other threads use its choice. Hence replicas on devices
// of one kind make the same choices.
class Tuner {
 public:
  // Same arguments as TuningCache.
  Tuner(const std::string& folder, std::string machine) : cache_(folder, std::move(machine)) {}
  virtual ~Tuner() = default;

  struct Others {
    std::vector<Candidate> known{};                  // searched before more() is called
    std::function<std::vector<Candidate>()> more{};  // may be empty; may call this tuner for other problems
    // Makes the op to use instead of `baseline` if nothing could be tried; may be empty.
    std::function<std::unique_ptr<CudaOp>()> untried{};
  };
  struct Choice {
    std::unique_ptr<CudaOp> op;
    std::optional<double> microseconds{};  // per run; nullopt: not tried
    std::string note{};                    // what was left out because of the time limit
    bool ran = false;                      // the op has just run on this device
  };
  // Returns `baseline` or a candidate, for the calling thread's current device. Trials allocate and free
  // memory of the device. Candidates that fail, or differ from the baseline by more than rounding, are rejected.
  // `variant` is part of the key: it names options that allow more candidates. When the trials have used up
  // DP_TUNING_SECONDS, the current trial ends with its best candidate so far. Later problems use the untried op.
  // Neither choice is written to disk.
  Choice choose(const OpDesc& desc, std::unique_ptr<CudaOp> baseline, const Others& others,
                const std::string& variant = {});
  // The time of the op chosen for the problem, in this run or an earlier one.
  std::optional<double> known_microseconds(const OpDesc& desc, const CudaOp& baseline, const std::string& variant = {});

 protected:
  // As try_ops(); the first op is the baseline.
  virtual std::vector<TrialResult> try_all(const OpDesc& desc, std::span<CudaOp* const> ops,
                                           const std::function<bool()>& out_of_time);
  virtual double seconds() const;  // of a monotonic clock

 private:
  struct Known {
    std::optional<TunedChoice> choice;
    bool hopeless = false;  // no op passed its trial in this run
    std::string note;
  };
  Known look_up(const std::string& problem);
  Choice untried(const std::string& problem, std::unique_ptr<CudaOp> baseline, const Others& others, double limit);

  std::mutex trying_, mutex_;  // mutex_ guards the members below
  TuningCache cache_;
  std::set<std::string> hopeless_;
  std::map<std::string, std::string> notes_;  // of problems that the time limit cut short
  std::atomic<double> spent_ = 0;             // seconds used by trials; written under trying_
};

// Wraps the choice for a plan: implementation() adds its time and note.
std::unique_ptr<Op> as_op(Tuner::Choice choice);

// The part of the cache key for the machine: device model, driver, library versions.
std::string machine_of(int device);
// Shared by all devices of the same kind.
Tuner& tuner_of(int device);

// Measured values for a set of GPUs, kept between runs in the folder of the tuning cache.

std::optional<double> remembered(std::span<const Device> devices, const std::string& what);
void remember(std::span<const Device> devices, const std::string& what, double value);

// A log file with the outcome of each candidate of a trial.

// Appends one line per op, "problem TAB candidate TAB microseconds or - TAB note", to the file that DP_TUNING_LOG
// names. Does nothing if it is not set. An empty note_of() is left out with its tab.
void log_trial(const std::string& problem, std::span<CudaOp* const> ops, std::span<const TrialResult> results);
// One line for a problem that was not tried.
void log_untried(const std::string& problem, const std::string& candidate, const std::string& why);

}  // namespace dp::kernels::cuda
