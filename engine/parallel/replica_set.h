// The replicas of this process, with a worker thread each and the communicators between them. Runs a function on all of
// them at once. If it fails, the error names the replica, device, phase and step.
//
// With a pipeline, each stage of each replica has its own worker: stage s of replica r is number r * stages + s. Here a
// Replica object is one such stage.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "dp/error.h"
#include "dp/process_group.h"
#include "engine/observe/tracer.h"
#include "engine/observe/watchdog.h"
#include "engine/parallel/gradient_sync.h"
#include "engine/parallel/model_setup.h"
#include "engine/parallel/worker_pool.h"
#include "engine/process_group/process_group_state.h"

namespace dp::engine {

// The vectors are filled while a DataParallel is made, and then have one entry per replica of this process.
class ReplicaSet {
 public:
  explicit ReplicaSet(const ModelSetup& setup);
  // Objects that use a replica's context must be destroyed before.
  ~ReplicaSet();
  ReplicaSet(const ReplicaSet&) = delete;
  ReplicaSet& operator=(const ReplicaSet&) = delete;

  // Runs work(replica, gradient_sync) on every worker.
  template <typename F>
  void on_replicas(F&& work) {
    run([&](int local) {
      Replica& replica = *replicas[static_cast<std::size_t>(local)];
      try {
        work(replica, *gradient_syncs[static_cast<std::size_t>(local)]);
      } catch (const kernels::Aborted&) {
        throw;
      } catch (...) {
        rethrow_with_place(replica);
      }
    });
  }
  // The same, but only on this process's first replica: the master, or with a process group this rank's own.
  template <typename F>
  void on_first(F&& work) {
    on_replicas([&](Replica& replica, GradientSync& gradient_sync) {
      if (&replica == replicas.front().get()) work(replica, gradient_sync);
    });
  }
  // The same, but only on this process's first replica of each stage.
  template <typename F>
  void on_first_of_stages(F&& work) {
    on_replicas([&](Replica& replica, GradientSync& gradient_sync) {
      if (replica.rank() == replicas.front()->rank()) work(replica, gradient_sync);
    });
  }
  // The same, but only on the master, the replica of rank 0; with a pipeline, on each of its stages.
  template <typename F>
  void on_master(F&& work) {
    on_replicas([&](Replica& replica, GradientSync& gradient_sync) {
      if (replica.rank() == 0) work(replica, gradient_sync);
    });
  }
  // Runs work(index of the replica in this process) on every worker.
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
  void watched(F&& work) {
    const Watched call(watchdog_.get());
    try {
      work();
    } catch (...) {
      rethrow_cause();
    }
  }
  void wait_for_all();  // until every device is idle

  // Call the next three during construction, when the replicas exist.
  // Makes one communicator per worker. It connects the replicas of the worker's stage.
  void connect(std::vector<std::unique_ptr<kernels::Communicator>>& all, kernels::Backend& backend,
               const std::string& communicator);
  void link(kernels::Backend& backend);  // makes the links
  // Returns one entry per worker. The entries are empty if no norm over several stages is needed. `buckets`: one list
  // per stage.
  std::vector<NormOfStages> join_norms(const std::vector<std::vector<Bucket>>& buckets);

  std::size_t local(const Replica& replica) const {
    return number(replica.rank() - replicas.front()->rank(), replica.stage());
  }
  // Returns the worker's number for this stage of this replica. Both are counted from 0 in this process.
  std::size_t number(int replica, int stage) const {
    return static_cast<std::size_t>(replica * setup.stage_count() + stage);
  }
  int replica_count() const { return static_cast<int>(replicas.size()) / setup.stage_count(); }  // of this process
  std::vector<kernels::LinkEnd> ends_of_links(std::size_t number) const;  // that this worker uses
  kernels::Communicator& io_of(const Replica& replica) { return *io[local(replica)]; }
  // Collective in a process group: returns the values of all ranks, in rank order.
  template <typename T>
  std::vector<T> of_all_ranks(const T& mine) const;

  void watch();          // starts the watchdog
  void stop() noexcept;  // stops the watchdog, and after a failure waits for the devices
  const ModelSetup& setup;
  WorkerPool pool;
  std::vector<std::unique_ptr<Tracer>> tracers;  // empty without tracing
  std::vector<std::unique_ptr<Replica>> replicas;
  std::vector<std::unique_ptr<GradientSync>> gradient_syncs;
  std::vector<std::unique_ptr<kernels::Communicator>> io;  // for all but gradients and weights; empty for one replica
  // With a pipeline: the links between stages s and s + 1 of a replica have the number of stage s. The entries of the
  // last stage are null.
  std::vector<std::unique_ptr<kernels::Link>> forward_links, backward_links;
  std::int64_t step = 0;              // completed training steps; the next step's dropout key
  std::uint64_t weights_version = 1;  // incremented before each change of weights or running statistics

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
  [[noreturn]] void rethrow_with_place(const Replica& replica) const;
  // "backward of micro-batch 3 of step 7"; without a pipeline, "backward of step 7".
  std::string text_of(Phase phase, int micro_batch) const;
  std::string name_of(const Replica& replica) const;  // "replica 1 (cpu)", "replica 1 stage 2 (cpu)"
  std::string last_of(const Replica& replica) const;
  void await_devices() noexcept;
  void finish_links() noexcept;

  Attached attached_;
  std::unique_ptr<Watchdog> watchdog_;  // null: no timeout. Reads the replicas until destroyed
};

template <typename T>
std::vector<T> ReplicaSet::of_all_ranks(const T& mine) const {
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
