// An instantiated graph. Its nodes run on internal streams ("lanes"). A node shares a lane with an earlier node only if
// it depends on it. Events order the other dependencies. So nodes without an edge between them run concurrently or in
// any order.
#pragma once

#include "simulated_cuda/streams/capture.h"

namespace dp::simt {

class GraphExec {
 public:
  explicit GraphExec(const Graph& graph);
  ~GraphExec();  // call it after the graph has finished
  GraphExec(const GraphExec&) = delete;
  GraphExec& operator=(const GraphExec&) = delete;

  void launch(Stream& stream);
  bool runs() const;

  bool uploaded = false;

 private:
  struct Node {
    Work work;
    Stream* recorded_on;
    Stream* lane;                             // the stream that runs it
    Event* done = nullptr;                    // for nodes on other lanes that depend on it
    std::uint64_t position = 0;               // of the record of `done`, in this launch
    std::vector<std::size_t> on_other_lanes;  // its dependencies on other lanes
    bool first = false, last = false;         // without dependencies; without dependents
  };
  Stream* lane_for(const Graph& graph, std::size_t number);

  std::vector<Node> nodes_;
  std::vector<Stream*> lanes_;
  std::vector<std::size_t> last_on_lane_;  // index of each lane's last node
  Event* begun_ = nullptr;
};

// Frees graphs that were destroyed while they ran: the finished ones, or all after waiting for them.
void free_destroyed_graphs(bool wait);

}  // namespace dp::simt
