#include "simulated_cuda/streams/graph_exec.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "simulated_cuda/driver_lock.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/runtime/handles.h"
#include "simulated_cuda/simulation.h"
#include "simulated_cuda/streams/launch_log.h"

namespace dp::simt {

GraphExec::GraphExec(const Graph& graph) {
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const GraphNode& from = graph.nodes[i];
    Node node{.work = from.work, .recorded_on = from.stream, .lane = lane_for(graph, i), .on_other_lanes = {}};
    node.first = from.after.empty();
    node.last = true;
    for (const std::size_t earlier : from.after) {
      Node& before = nodes_[earlier];
      before.last = false;
      if (before.lane == node.lane) continue;
      if (before.done == nullptr) before.done = make_event(before.lane->device(), false);
      node.on_other_lanes.push_back(earlier);
    }
    held_by_graph(node.work, 1);
    nodes_.push_back(std::move(node));
  }
  for (Node& node : nodes_)
    if (node.last) node.done = make_event(node.lane->device(), false);
  if (!nodes_.empty()) begun_ = make_event(nodes_.front().lane->device(), false);
}

// The lane of a dependency that no other node follows there, preferably one recorded on the same stream; else a new
// lane.
Stream* GraphExec::lane_for(const Graph& graph, std::size_t number) {
  const GraphNode& node = graph.nodes[number];
  std::size_t chosen = lanes_.size();
  for (const std::size_t earlier : node.after)
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      if (last_on_lane_[lane] != earlier || lanes_[lane]->device() != node.stream->device()) continue;
      if (chosen == lanes_.size() || graph.nodes[earlier].stream == node.stream) chosen = lane;
    }
  if (chosen == lanes_.size()) {
    lanes_.push_back(make_stream(node.stream->device(), node.stream->priority()));
    last_on_lane_.emplace_back();
  }
  last_on_lane_[chosen] = number;
  return lanes_[chosen];
}

GraphExec::~GraphExec() {
  for (Stream* const lane : lanes_) destroy(*lane);
  for (const Node& node : nodes_) {
    if (node.done != nullptr) destroy(*node.done);
    held_by_graph(node.work, -1);
  }
  if (begun_ != nullptr) destroy(*begun_);
}

void GraphExec::launch(Stream& stream) {
  if (nodes_.empty()) return;
  const std::uint64_t begun = stream.enqueue(RecordWork{begun_});
  for (Node& node : nodes_) {
    if (node.first) node.lane->enqueue(WaitWork{&stream, begun, begun_});
    for (const std::size_t earlier : node.on_other_lanes) {
      const Node& before = nodes_[earlier];
      node.lane->enqueue(WaitWork{before.lane, before.position, before.done});
    }
    log_launch(*node.recorded_on, node.work);
    node.lane->enqueue(launched(node.work));
    if (node.done != nullptr) node.position = node.lane->enqueue(RecordWork{node.done});
  }
  for (const Node& node : nodes_)
    if (node.last) stream.enqueue(WaitWork{node.lane, node.position, node.done});
}

bool GraphExec::runs() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](Stream* lane) { return !lane->reached(lane->enqueued()); });
}

namespace {

std::mutex graphs_mutex;
// Like a driver, refers to every graph: one whose handle was abandoned with a failed device is no leak.
auto& instantiated = *new std::set<GraphExec*>;
auto& destroyed = *new std::vector<std::unique_ptr<GraphExec>>;

}  // namespace

void free_destroyed_graphs(bool wait) {
  const std::scoped_lock lock(graphs_mutex);
  std::erase_if(destroyed, [&](const auto& graph) { return wait || !graph->runs(); });
}

}  // namespace dp::simt

using namespace dp::simt;

namespace {

bool is_to_fail(int& countdown) { return countdown > 0 && --countdown == 0; }

}  // namespace

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (graph == nullptr) return failed(cudaErrorInvalidValue);
  if (any_stream_works()) may_block("cudaGraphInstantiate");
  if (const cudaError_t error = injected_error()) return error;
  if (is_to_fail(simulation().fail_instantiate)) return unreported(cudaErrorMemoryAllocation);
  auto* const made = new GraphExec(*reinterpret_cast<const Graph*>(graph));
  *exec = reinterpret_cast<cudaGraphExec_t>(made);
  graphs_changed(1);
  const std::scoped_lock lock(graphs_mutex);
  instantiated.insert(made);
  return cudaSuccess;
}

// Does not wait: a running graph is freed after it ends.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  std::unique_ptr<GraphExec> gone(reinterpret_cast<GraphExec*>(exec));
  graphs_changed(-1);
  const std::scoped_lock lock(graphs_mutex);
  instantiated.erase(gone.get());
  if (!gone->runs()) return cudaSuccess;
  destroyed.push_back(std::move(gone));
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  graphs_changed(-1);
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (graph == nullptr || nodes != nullptr)
    return failed(cudaErrorInvalidValue);  // returning the nodes is not supported
  if (const cudaError_t error = injected_error()) return error;
  *count = reinterpret_cast<const Graph*>(graph)->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t handle) {
  Stream* const stream = as_stream(handle, "cudaGraphUpload");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (exec == nullptr) return failed(cudaErrorInvalidValue);
  if (const cudaError_t error = refuse_if_captured(*stream, "cudaGraphUpload")) return error;
  if (any_stream_works()) may_block("cudaGraphUpload");
  if (is_to_fail(simulation().fail_upload)) return unreported(cudaErrorMemoryAllocation);
  reinterpret_cast<GraphExec*>(exec)->uploaded = true;
  return sticky_error(stream->device());
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  Stream* const stream = as_stream(handle, "cudaGraphLaunch");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (exec == nullptr) return failed(cudaErrorInvalidValue);
  if (const cudaError_t error = refuse_if_captured(*stream, "cudaGraphLaunch")) return error;
  if (const cudaError_t error = sticky_error(stream->device())) return error;
  GraphExec& graph = *reinterpret_cast<GraphExec*>(exec);
  if (!std::exchange(graph.uploaded, true)) may_block("cudaGraphLaunch of a graph that was not uploaded");
  if (is_to_fail(simulation().fail_graph_launch)) return unreported(cudaErrorMemoryAllocation);
  graph.launch(*stream);
  return cudaSuccess;
}
