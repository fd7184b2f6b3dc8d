// The workers of this process, with a thread each if there are several, and what they share. Runs a function on all of
// them at once. If it fails, the error names the replica, device, phase and step.
//
// With a pipeline, each stage of each replica has its own worker: stage s of replica r is number r * stages + s.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "dp/error.h"
#include "dp/process_group.h"
#include "engine/observe/watchdog.h"
#include "engine/process_group/process_group_state.h"
#include "engine/step/model_setup.h"
#include "engine/step/worker.h"
#include "engine/step/worker_pool.h"

namespace dp::engine {

class StepGraphs;

class Team {
 public:
  // The workers are made later, on their threads.
  explicit Team(const ModelSetup& setup);
  // Objects that use a worker's context must be destroyed before.
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Runs work(worker) on every worker's thread.
  template <typename F>
  void on_workers(F&& work) {
    run([&](int number) {
      Worker& worker = *workers[static_cast<std::size_t>(number)];
      try {
        work(worker);
      } catch (const kernels::Aborted&) {
        throw;
      } catch (...) {
        rethrow_with_place(worker);
      }
    });
  }
  // The same, but only on this process's first worker. Without a process group this is the master; with a pipeline, the
  // first stage of the master.
  template <typename F>
  void on_first_worker(F&& work) {
    on_workers([&](Worker& worker) {
      if (worker.number == 0) work(worker);
    });
  }
  // The same, but only on this process's first replica; with a pipeline, on each of its stages.
  template <typename F>
  void on_first_replica(F&& work) {
    on_workers([&](Worker& worker) {
      if (worker.number < setup.stages.size()) work(worker);
    });
  }
  // The same, but only on the master, the replica of rank 0; with a pipeline, on each of its stages.
  template <typename F>
  void on_master(F&& work) {
    on_workers([&](Worker& worker) {
      if (worker.rank() == 0) work(worker);
    });
  }
  // Runs work(number of the worker) on every thread. The workers need not exist yet.
  template <typename F>
  void run(F&& work) {
    const Watched call(watchdog_.get());
    try {
      pool.run(work);
    } catch (...) {
      rethrow_cause();
    }
  }
  // Calls work() on this thread under the watchdog.
  template <typename F>
  void run_watched(F&& work) {
    const Watched call(watchdog_.get());
    try {
      work();
    } catch (...) {
      rethrow_cause();
    }
  }
  void wait_for_all();  // until every device is idle, and no snapshot is being copied

  // Call the next three once the workers exist.

  // Makes one communicator per worker, between the replicas of the worker's stage.
  void connect_replicas(std::vector<std::unique_ptr<kernels::Communicator>>& all, kernels::Backend& backend,
                        const std::string& communicator);
  void link_stages(kernels::Backend& backend);  // makes forward_links and backward_links
  // Makes communicators between the stages of each replica, for the norm of the whole gradient. Returns one entry per
  // worker, empty if no norm over several stages is needed. `buckets`: one list per stage.
  std::vector<GradientNormOfStages> connect_stages_for_norm(const std::vector<std::vector<Bucket>>& buckets);

  // Returns the worker's number for this stage of this replica. Both are counted from 0 in this process.
  std::size_t worker_number(int replica, int stage) const {
    return static_cast<std::size_t>(replica * setup.stage_count() + stage);
  }
  int local_replica_count() const { return static_cast<int>(workers.size()) / setup.stage_count(); }  // in this process
  std::vector<kernels::LinkEnd> ends_of_links(std::size_t number) const;  // that this worker uses
  // Collective in a process group: returns the values of all ranks, in rank order.
  template <typename T>
  std::vector<T> values_of_all_ranks(const T& mine) const;

  void start_watchdog();
  // Extends row_numbers to at least `rows`. Call it while no worker runs.
  void extend_row_numbers(std::int64_t rows);

  const ModelSetup& setup;
  // While another thread copies a snapshot: from the arenas, so updates wait, or from Worker::copy.
  std::atomic<bool> updates_held{false}, copies_held{false};
  WorkerPool pool;
  std::vector<std::unique_ptr<Worker>> workers;  // one per entry of options.devices
  // With a pipeline: the links between stages s and s + 1 of a replica have the number of the worker of
  // stage s. The entries of the last stage are null.
  std::vector<std::unique_ptr<kernels::Link>> forward_links, backward_links;
  std::unique_ptr<StepGraphs> graphs;
  std::int64_t step = 0;                  // completed training steps; the next step's dropout key
  std::uint64_t weights_version = 1;      // incremented before each change of weights or running statistics
  std::vector<std::int64_t> row_numbers;  // 0, 1, 2, ...: dropout's sample keys for batches without samples

 private:
  class Attached {  // attaches the pool's abort flag to the process group; the destructor detaches it
   public:
    Attached() = default;
    ~Attached() {
      if (group_ != nullptr) group_->state().detach(flag_);
    }
    Attached(const Attached&) = delete;
    Attached& operator=(const Attached&) = delete;
    void to(ProcessGroup& group, kernels::AbortFlag* flag) {
      group.state().attach(flag);
      group_ = &group;
      flag_ = flag;
    }

   private:
    ProcessGroup* group_ = nullptr;
    kernels::AbortFlag* flag_ = nullptr;
  };
  class Watched {  // enables the watchdog during a call
   public:
    explicit Watched(Watchdog* watchdog) : watchdog_(watchdog) {
      if (watchdog_ != nullptr) watchdog_->begin();
    }
    ~Watched() {
      if (watchdog_ != nullptr) watchdog_->end();
    }
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;

   private:
    Watchdog* watchdog_;
  };

  // Call these in a catch block. The first: if the current exception only follows from another failure, throws that
  // failure; otherwise rethrows the exception.
  [[noreturn]] void rethrow_cause() const;
  [[noreturn]] void rethrow_with_place(const Worker& worker) const;
  // "backward of micro-batch 3 of step 7"; without a pipeline, "backward of step 7". `item`: Progress::item().
  std::string text_of(Phase phase, int item) const;
  std::string name_of(const Worker& worker) const;  // "replica 1 (cpu)", "replica 1 stage 2 (cpu)"
  std::string last_work_of(const Worker& worker) const;
  void wait_for_devices_after_failure() noexcept;
  void wait_before_destruction() noexcept;

  Attached attached_;
  std::unique_ptr<Watchdog> watchdog_;  // null: no timeout. Reads the workers until destroyed
};

template <typename T>
std::vector<T> Team::values_of_all_ranks(const T& mine) const {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all;
  const auto bytes = std::string_view(reinterpret_cast<const char*>(&mine), sizeof mine);
  for (const std::string& text : setup.options.process_group->exchange(bytes)) {
    if (text.size() != sizeof(T))
      throw Error(ErrorCode::usage,
                  "the ranks run different builds of the program; start the same build on every host");
    std::memcpy(&all.emplace_back(), text.data(), sizeof(T));
  }
  return all;
}

}  // namespace dp::engine
