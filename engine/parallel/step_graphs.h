// Training steps as graphs: what a step enqueues between its inputs and its end is recorded once and launched from then on.
//
// A kind of step (its rows, with or without momentum) runs eagerly the first time it is met, which makes plans and memory, is recorded the
// second time, and launched after that, while the replicas' memory stays where it is. Replicas whose communicators wait for each other's
// streams are recorded into one graph, which the first replica launches; otherwise each has its own. A recording that fails changes
// nothing: the step is run eagerly, as are all that follow.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "dp/statistics.h"
#include "engine/parallel/barrier.h"
#include "engine/parallel/gradient_sync.h"
#include "engine/replica/replica.h"
#include "kernels/capture_turn.h"

namespace dp::engine {

struct StepKind {
  std::int64_t rows = 0;    // of the batch, in this process
  std::int64_t global = 0;  // of the batch, in all processes
  bool momentum = false;
  bool kept = false;  // images are made on the device
};

class StepGraphs {
 public:
  struct Members {  // of this process's replicas, in order; not owned
    std::vector<Replica*> replicas;
    std::vector<GradientSync*> gradient_syncs;
    std::vector<kernels::Communicator*> io;  // empty for one replica
    // In a world of several ranks: whether all of them say yes; all call it together. Null: there are no other processes.
    std::function<bool(bool)> all_ranks;
  };
  // `refusal`: why no step runs as a graph; empty: graphs are used. `required`: a recording that fails is an error.
  StepGraphs(Members members, const kernels::AbortFlag* abort, std::string refusal, bool required);

  // Around each training step, on the caller's thread, while no worker runs; end_step() only after one that did not fail.
  // Error(device) from end_step() where a recording was required and failed; the step was done eagerly.
  // `eagerly`: this step is no graph, whatever its kind.
  void begin_step(const StepKind& kind, int parts, bool eagerly);
  void end_step();
  // In a world, where a kind is known by its global batch and all ranks must launch or enqueue alike: what may move a rank's memory.
  void evaluated(std::int64_t global_batch, bool kept);
  void prepared() { ++events_; }

  // On each replica's worker: work() is part number `part` of the step, enqueued or launched. It enqueues the same at each step of its
  // kind, waits for nothing that was recorded before it began but what the exchange brings, and leaves nothing behind but on streams that
  // come back to the compute stream.
  template <typename Work>
  void run(std::size_t replica, std::size_t part, Work&& work) {
    using Own = std::remove_reference_t<Work>;
    if (mode_ == Mode::eager)
      work();
    else
      run_as_graph(replica, part, {[](void* self) { (*static_cast<Own*>(self))(); }, &work});
  }

  Choice choice() const;         // as DataParallel::graphs_choice()
  std::string describe() const;  // "CUDA graphs": how many nodes, or why not; a line

 private:
  enum class Mode { eager, record, launch };
  struct Work {
    void (*call)(void*);
    void* self;
    void operator()() const { call(self); }
  };
  // Of one kind. graphs[part][replica], or [part][0] where all are in one.
  struct Recorded {
    StepKind kind;
    std::uint64_t placed = 0, allocations = 0;  // where memory was when the kind was last run eagerly
    bool recorded = false;
    std::vector<std::vector<std::unique_ptr<kernels::Graph>>> graphs;
  };
  class Recording;
  class Turn;

  void run_as_graph(std::size_t replica, std::size_t part, const Work& work);
  bool record_own(std::size_t replica, std::size_t part, const Work& work);
  bool record_joint(std::size_t replica, std::size_t part, const Work& work);
  void launch(std::size_t replica, std::size_t part);
  template <typename F>
  bool attempt(F&& f);
  bool agreed(bool well);
  bool is(const StepKind& kind, const StepKind& other) const;
  std::uint64_t allocations() const;
  // Differs from before when memory may have moved; in a world on every rank, if on one.
  std::uint64_t placed() const { return members_.all_ranks ? events_ : allocations(); }

  const Members members_;
  std::string refusal_;
  const bool required_;
  bool joint_ = false;
  Barrier barrier_;
  kernels::CaptureTurn turn_;
  std::unique_ptr<kernels::Event> begun_, done_;        // of the first replica
  std::vector<std::unique_ptr<kernels::Event>> ready_;  // of the others
  std::vector<std::unique_ptr<Recorded>> kinds_;        // the latest used last
  std::uint64_t events_ = 0;
  std::set<std::pair<std::int64_t, bool>> evaluated_;
  Recorded* kind_ = nullptr;  // of this step; null: it is none of them
  Mode mode_ = Mode::eager;
  std::atomic<bool> failed_{false};  // a recording of this step
  std::mutex failure_mutex_;         // of the next; taken by who failed only
  std::string failure_;
};

}  // namespace dp::engine
