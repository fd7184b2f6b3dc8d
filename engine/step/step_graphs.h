// Training steps as CUDA graphs. The work between the upload of a step's inputs and its end is captured once and
// launched in later steps.
//
// The first step of a kind (see StepKind) runs eagerly and creates plans and memory. The second step is captured and
// launched. Later steps are launched, as long as no worker's memory is replaced. If communicators or links wait for
// other workers' streams, all workers are captured into one graph, and the first worker launches it. Otherwise each
// worker has its own graph. If a capture fails, this step and all later steps run eagerly.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "dp/statistics.h"
#include "engine/optimizer/optimizer.h"
#include "engine/step/worker_pool.h"
#include "kernels/comm/communicator.h"
#include "kernels/device/backend.h"

namespace dp::engine {

struct StepKind {
  std::int64_t rows = 0;    // of the batch, in this process
  std::int64_t global = 0;  // of the batch, in all processes
  UpdateKind update;
  bool resident = false;  // images are made on the device from a device-resident data set
};

class Team;
class Worker;

class StepGraphs {
 public:
  // `refusal`: why no step runs as a graph; empty: graphs are used. `required`: a failed capture is an error.
  // `team` owns this object, and its workers are complete.
  StepGraphs(Team& team, std::string refusal, bool required);

  // Call them before and after each training step, on the caller's thread, while no worker runs; end_step() only if the
  // step succeeded. `parts`: calls of run() per worker in the step, each with its own graph (one per micro-batch; one
  // for all with a pipeline). `eagerly`: this step must not run as a graph.
  // begin_step(): Error(usage) if this rank had a different number of rows in an earlier batch of the same global size,
  // or has allocated memory since.
  // end_step(): Error(device) if a required capture failed; the step has then run eagerly.
  void begin_step(const StepKind& kind, int parts, bool eagerly);
  void end_step();
  // With several ranks, all ranks must make the same choice between capture, launch and eager execution. These calls
  // report what may replace memory on any rank. evaluated(): call it for each evaluated batch.
  void evaluated(std::int64_t global_batch, bool resident);
  void memory_changed() { ++memory_changes_; }

  // Call it on each worker. Runs, captures or launches work(), which enqueues part `part` of the step. work()
  // must enqueue the same operations in each step of a kind. It must not wait for events recorded before it began; for
  // a graph, run() waits for the weights first. All forked streams must rejoin the compute stream; GradientSync's
  // stream does so by wait_for_weights().
  template <typename Work>
  void run(Worker& worker, std::size_t part, Work&& work) {
    using Own = std::remove_reference_t<Work>;
    if (mode_ == Mode::eager)
      work();
    else
      run_as_graph(worker, part, {[](void* self) { (*static_cast<Own*>(self))(); }, &work});
  }

  Choice choice() const;         // as DataParallel::graphs_choice()
  std::string describe() const;  // one line: the nodes of each graph, or why steps run eagerly

 private:
  enum class Mode { eager, capture, launch };
  struct Work {
    void (*call)(void*);
    void* self;
    void operator()() const { call(self); }
  };
  // The graphs of one kind: graphs[part][worker], or graphs[part][0] if all workers share a graph.
  struct KindGraphs {
    StepKind kind;
    std::uint64_t memory_version = 0, allocations = 0;  // StepGraphs' values after the kind's last eager step
    bool captured = false;
    std::vector<std::vector<std::unique_ptr<kernels::Graph>>> graphs;
  };
  class Capture;
  class Turn;

  void run_as_graph(Worker& worker, std::size_t part, const Work& work);
  bool capture_own(Worker& worker, std::size_t part, const Work& work);
  bool capture_joint(Worker& worker, std::size_t part, const Work& work);
  void launch(Worker& worker, std::size_t part);
  void take_turns(Worker& worker, kernels::CaptureTurn* turn);
  void reset_links(std::size_t number);
  template <typename F>
  bool attempt(F&& f);
  bool all_succeeded(bool succeeded);  // whether all workers of all ranks passed true; collective
  bool same_kind(const StepKind& kind, const StepKind& other) const;
  std::uint64_t allocations() const;
  // Changes when memory may have been replaced. With several ranks it changes on all ranks at the same step.
  std::uint64_t memory_version() const { return several_ranks_ ? memory_changes_ : allocations(); }

  // Returns whether the argument is true on all ranks. Collective.
  bool on_all_ranks(bool yes) const;

  Team& team_;
  std::vector<std::vector<kernels::LinkEnd>> links_;  // the ends that each worker uses
  std::string refusal_;
  const bool required_, several_ranks_;
  bool joint_ = false;
  Barrier barrier_;
  kernels::CaptureTurn turn_;
  std::unique_ptr<kernels::Event> begun_, done_;        // recorded by the first worker
  std::vector<std::unique_ptr<kernels::Event>> ready_;  // one per worker; the first is unused
  std::vector<std::unique_ptr<KindGraphs>> kinds_;      // most recently used last
  std::uint64_t memory_changes_ = 0;
  std::set<std::pair<std::int64_t, bool>> evaluated_;
  KindGraphs* kind_ = nullptr;  // of this step; null if it runs eagerly and counts for no kind
  Mode mode_ = Mode::eager;
  std::atomic<bool> failed_{false};  // a capture in this step failed
  std::mutex failure_mutex_;         // guards failure_; locked only after a failure
  std::string failure_;
};

}  // namespace dp::engine
