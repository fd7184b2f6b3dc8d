#include "engine/step/step_graphs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "dp/error.h"
#include "engine/step/team.h"

namespace dp::engine {
namespace {

constexpr std::size_t kMostKinds = 8;

}  // namespace

// The capture of one context. The destructor drops a capture that is still open.
class StepGraphs::Capture {
 public:
  // `turn`: lock that drop() takes, because other replicas may still be capturing; may be null.
  Capture(kernels::Context& context, kernels::Stream* root, kernels::CaptureTurn* turn)
      : context_(context), root_(root), turn_(turn) {}
  ~Capture() { drop(); }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  void begin() {
    open_ = true;
    context_.begin_graph(root_);
  }
  std::unique_ptr<kernels::Graph> end() {
    auto graph = context_.end_graph(root_);
    open_ = false;
    return graph;
  }
  void drop() noexcept {
    if (!std::exchange(open_, false)) return;
    if (turn_ != nullptr) turn_->take();
    context_.drop_graph(root_);
    if (turn_ != nullptr) turn_->pass();
  }

 private:
  kernels::Context& context_;
  kernels::Stream* const root_;
  kernels::CaptureTurn* const turn_;
  bool open_ = false;
};

// Holds the capture lock for one worker. Its communicators and links release the lock while they wait for other
// workers.
class StepGraphs::Turn {
 public:
  Turn(StepGraphs& graphs, Worker& worker) : graphs_(graphs), worker_(worker) {
    graphs_.turn_.take();
    graphs_.take_turns(worker_, &graphs_.turn_);
  }
  ~Turn() {
    graphs_.take_turns(worker_, nullptr);
    graphs_.turn_.pass();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  StepGraphs& graphs_;
  Worker& worker_;
};

StepGraphs::StepGraphs(Team& team, std::string refusal, bool required)
    : team_(team),
      refusal_(std::move(refusal)),
      required_(required),
      several_ranks_(team.setup.options.process_group && team.setup.replica_count() > 1),
      barrier_(static_cast<int>(team.workers.size()), team.pool.abort_flag()) {
  for (const auto& worker : team.workers) links_.push_back(team.ends_of_links(worker->number));
  if (!refusal_.empty()) return;
  const Worker& first = *team.workers.front();
  const kernels::Communicator* const buckets = first.gradient_sync->communicator();
  const auto& links = links_.front();
  joint_ = team.workers.size() > 1 &&
           ((buckets != nullptr && buckets->joins_graphs()) || (!links.empty() && links.front().link->joins_graphs()));
  if (!joint_) return;
  begun_ = first.context().make_event();
  done_ = first.context().make_event();
  for (const auto& worker : team.workers) ready_.push_back(worker->context().make_event());
}

bool StepGraphs::on_all_ranks(bool yes) const {
  const std::vector<char> all = team_.values_of_all_ranks(static_cast<char>(yes));
  return std::count(all.begin(), all.end(), char{1}) == team_.setup.replica_count();
}

// With several ranks, a kind is identified by its global batch size: local sizes may differ between ranks.
bool StepGraphs::same_kind(const StepKind& kind, const StepKind& other) const {
  return kind.update == other.update && kind.resident == other.resident &&
         (several_ranks_ ? kind.global == other.global : kind.rows == other.rows);
}

bool StepGraphs::all_succeeded(bool succeeded) {
  const bool here = barrier_.arrive_and_wait(succeeded);
  return several_ranks_ ? on_all_ranks(here) : here;
}

void StepGraphs::evaluated(std::int64_t global_batch, bool resident) {
  if (several_ranks_ && refusal_.empty() && evaluated_.emplace(global_batch, resident).second) ++memory_changes_;
}

std::uint64_t StepGraphs::allocations() const {
  std::uint64_t sum = 0;
  for (const auto& worker : team_.workers) sum += worker->device.allocations();
  return sum;
}

void StepGraphs::begin_step(const StepKind& kind, int parts, bool eagerly) {
  mode_ = Mode::eager;
  kind_ = nullptr;
  if (!refusal_.empty()) return;
  const auto known =
      std::find_if(kinds_.begin(), kinds_.end(), [&](const auto& k) { return same_kind(k->kind, kind); });
  if (eagerly) {
    if (known == kinds_.end()) ++memory_changes_;  // the step may allocate memory
    return;
  }
  if (known != kinds_.end() && (*known)->memory_version == memory_version()) {
    const char* const rule = "with CUDA graphs, equal global batches need equal local batches; use --graphs never";
    if ((*known)->kind.rows != kind.rows)
      throw Error(ErrorCode::usage,
                  fmt::format("this rank has {} rows of a global batch of {}, but had a different number before; {}",
                              kind.rows, kind.global, rule));
    if ((*known)->allocations != allocations())
      throw Error(
          ErrorCode::usage,
          fmt::format("this rank has allocated memory since an earlier global batch of {}; {}", kind.global, rule));
    std::rotate(known, known + 1, kinds_.end());
    kind_ = kinds_.back().get();
    mode_ = kind_->captured ? Mode::launch : Mode::capture;
    return;
  }
  if (known != kinds_.end())
    kinds_.erase(known);
  else
    ++memory_changes_;
  if (kinds_.size() == kMostKinds) kinds_.erase(kinds_.begin());
  kinds_.push_back(std::make_unique<KindGraphs>());
  kind_ = kinds_.back().get();
  kind_->kind = kind;
  kind_->graphs.resize(static_cast<std::size_t>(parts));
  for (auto& part : kind_->graphs) part.resize(joint_ ? 1 : team_.workers.size());
}

void StepGraphs::end_step() {
  if (kind_ == nullptr) return;
  if (failed_.exchange(false)) {
    refusal_ = failure_.empty() ? "a graph capture failed on another rank" : "a graph capture failed: " + failure_;
    kinds_.clear();
    if (required_) throw Error(ErrorCode::device, "--graphs always: " + refusal_);
    if (!failure_.empty())
      std::fprintf(stderr, "dp: warning: training steps go on without graphs: %s\n", failure_.c_str());
    return;
  }
  kind_->captured = mode_ != Mode::eager;
  if (mode_ != Mode::eager) return;
  kind_->memory_version = memory_version();
  kind_->allocations = allocations();
}

// Runs f. Returns false if f threw an exception that only ends the capture, and saves its message. Aborted is rethrown.
template <typename F>
bool StepGraphs::attempt(F&& f) {
  std::string failure;
  try {
    f();
    return true;
  } catch (const kernels::Aborted&) {
    throw;
  } catch (const kernels::CaptureTurn::GivenUp&) {  // the replica that called give_up() reports the reason
  } catch (const std::exception& error) {
    failure = error.what();
  } catch (...) {
    failure = "an exception of unknown type";
  }
  const std::scoped_lock lock(failure_mutex_);
  if (failure_.empty()) failure_ = failure;
  return false;
}

void StepGraphs::run_as_graph(Worker& worker, std::size_t part, const Work& work) {
  worker.gradient_sync->wait_for_weights();
  bool captured = mode_ == Mode::launch;
  if (mode_ == Mode::capture && !failed_.load(std::memory_order_relaxed)) {
    worker.clock.progress().advance();
    reset_links(worker.number);
    captured = joint_ ? capture_joint(worker, part, work) : capture_own(worker, part, work);
    reset_links(worker.number);
    if (!captured) {
      failed_.store(true, std::memory_order_relaxed);
      worker.gradient_sync->reset();
      if (worker.compute_communicator) worker.compute_communicator->reset();
      barrier_.arrive_and_wait();
    }
  }
  if (captured)
    launch(worker, part);
  else
    work();
}

bool StepGraphs::capture_own(Worker& worker, std::size_t part, const Work& work) {
  auto& graph = kind_->graphs[part][worker.number];
  Capture capture(worker.context(), &worker.compute(), nullptr);
  // begin() waits for the replica's streams. After this barrier all replicas are idle, and no replica enqueues work
  // before all_succeeded(). This is necessary because graph instantiation may wait for a device.
  bool succeeded = barrier_.arrive_and_wait(attempt([&] { capture.begin(); }));
  succeeded = succeeded && attempt([&] {
                work();
                worker.gradient_sync->wait_for_weights();
                graph = capture.end();
              });
  capture.drop();
  if (all_succeeded(succeeded)) return true;
  graph.reset();
  return false;
}

bool StepGraphs::capture_joint(Worker& worker, std::size_t part, const Work& work) {
  kernels::Stream& compute = worker.compute();
  const bool leads = worker.number == 0;
  Capture capture(worker.context(), leads ? &compute : nullptr, leads ? &turn_ : nullptr);
  bool succeeded = attempt([&] {
    capture.begin();
    if (leads) compute.record(*begun_);
  });
  if (!barrier_.arrive_and_wait(succeeded)) return false;
  {
    const Turn turn(*this, worker);
    succeeded = attempt([&] {
      if (!leads) compute.wait(*begun_);
      work();
      worker.gradient_sync->wait_for_weights();
      if (!leads) compute.record(*ready_[worker.number]);
    });
    if (!succeeded) turn_.give_up();
  }
  succeeded = barrier_.arrive_and_wait(succeeded);
  if (leads) {
    succeeded = succeeded && attempt([&] {
                  for (std::size_t other = 1; other < ready_.size(); ++other) compute.wait(*ready_[other]);
                  kind_->graphs[part].front() = capture.end();
                });
    capture.drop();
    turn_.begin_anew();
  }
  succeeded = barrier_.arrive_and_wait(succeeded);  // the capture of all streams has ended
  if (!leads && succeeded) capture.end();
  return succeeded;
}

void StepGraphs::take_turns(Worker& worker, kernels::CaptureTurn* turn) {
  worker.gradient_sync->take_turns(turn);
  if (worker.compute_communicator) worker.compute_communicator->take_turns(turn);
  for (const kernels::LinkEnd& end : links_[worker.number]) end.link->take_turns(end.end, turn);
}

// Call it before and after a capture, because CUDA does not allow waits for events across its boundary.
void StepGraphs::reset_links(std::size_t number) {
  for (const kernels::LinkEnd& end : links_[number])
    if (end.end == kernels::Link::End::sender) end.link->reset();
}

void StepGraphs::launch(Worker& worker, std::size_t part) {
  kernels::Stream& compute = worker.compute();
  worker.clock.enter_graph();
  const auto& graphs = kind_->graphs[part];
  if (!joint_) return graphs[worker.number]->launch(compute);
  const bool leads = worker.number == 0;
  if (!leads) compute.record(*ready_[worker.number]);
  barrier_.arrive_and_wait();
  if (leads) {
    for (std::size_t other = 1; other < ready_.size(); ++other) compute.wait(*ready_[other]);
    graphs.front()->launch(compute);
    compute.record(*done_);
  }
  barrier_.arrive_and_wait();
  if (!leads) compute.wait(*done_);
}

Choice StepGraphs::choice() const {
  if (!refusal_.empty()) return {"none", refusal_};
  if (joint_) return {"one of all replicas", "events order the replicas' streams, which one graph can hold"};
  return {"one per replica", team_.workers.size() > 1 ? "--graphs always" : "this process drives one replica"};
}

std::string StepGraphs::describe() const {
  if (!refusal_.empty()) return "steps run eagerly: " + refusal_;
  std::string text = joint_ ? "steps run as one graph of all replicas" : "steps run as one graph for each replica";
  bool any = false;
  for (const auto& kind : kinds_) {
    if (!kind->captured) continue;
    std::size_t nodes = 0;
    for (const auto& part : kind->graphs) nodes += part.front()->nodes();
    text += fmt::format("{}{} rows: {} nodes", any ? ", " : "; ", kind->kind.rows, nodes);
    any = true;
  }
  return any ? text : text + ", from the second of a kind on";
}

}  // namespace dp::engine
