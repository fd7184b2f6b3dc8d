// Of several ways to compute an op, the one that is fastest on this device: each is tried once, on random data, and the choice is kept.
// DP_TUNING_SECONDS limits what the trials of a process take.
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

#include "kernels/cuda/tuning/candidates.h"
#include "kernels/cuda/tuning/trial.h"
#include "kernels/cuda/tuning/tuning_cache.h"

namespace dp::kernels::cuda {

// A description of the problem that an op solves, the same for all ways to solve it.
std::string problem_of(const OpDesc& desc, const CudaOp& op);

// Safe for the threads of all replicas: one tries at a time, the others find what it chose. Replicas on devices of one kind so have the
// same choices.
class Tuner {
 public:
  // As TuningCache.
  Tuner(const std::string& folder, std::string machine) : cache_(folder, std::move(machine)) {}
  virtual ~Tuner() = default;

  struct Others {
    std::vector<Candidate> known{};                  // looked through before more() is called
    std::function<std::vector<Candidate>()> more{};  // may be empty; may ask this tuner about other problems
    std::function<std::unique_ptr<CudaOp>()>
        untried{};  // what is used in place of `pinned` where nothing could be tried; may be empty
  };
  struct Choice {
    std::unique_ptr<CudaOp> op;
    std::optional<double> microseconds{};  // of one run; nothing where nothing was tried
    std::string note{};                    // where the time for trials was over: what was left out
    bool ran = false;                      // the op has just been run on this device
  };
  // `pinned`, or one of the others. The device is the calling thread's current one. Its memory is asked for and given back. A way
  // that fails, or differs from `pinned` by more than rounding, is none. `variant`: what the others may do that they may not
  // for the same problem elsewhere. Once the trials have taken the seconds of DP_TUNING_SECONDS, a trial under way ends with the best
  // candidate so far, and later problems get what they get where nothing can be tried; neither is written to disk.
  Choice choose(const OpDesc& desc, std::unique_ptr<CudaOp> pinned, const Others& others,
                const std::string& variant = {});
  // Of the way that was chosen for the problem, in this run or an earlier one.
  std::optional<double> known_microseconds(const OpDesc& desc, const CudaOp& pinned, const std::string& variant = {});

 protected:
  // As try_ops(); the first is the pinned one.
  virtual std::vector<TrialResult> try_all(const OpDesc& desc, std::span<CudaOp* const> ops,
                                           const std::function<bool()>& out_of_time);
  virtual double seconds() const;  // of a clock

 private:
  struct Known {
    std::optional<TunedChoice> choice;
    bool hopeless = false;  // nothing could be tried in this run
    std::string note;
  };
  Known look_up(const std::string& problem);
  Choice untried(const std::string& problem, std::unique_ptr<CudaOp> pinned, const Others& others, double limit);

  std::mutex trying_, mutex_;  // mutex_: of what is below
  TuningCache cache_;
  std::set<std::string> hopeless_;
  std::map<std::string, std::string> notes_;  // of problems that the time was not enough for
  std::atomic<double> spent_ = 0;             // seconds of trials; written under trying_
};

// A choice as an op of a plan, whose implementation() says what it takes, and its note.
std::unique_ptr<Op> as_op(Tuner::Choice choice);

// Everything that times on a device depend on: its model, driver, versions.
std::string machine_of(int device);
// That of a device and of all like it.
Tuner& tuner_of(int device);

}  // namespace dp::kernels::cuda
