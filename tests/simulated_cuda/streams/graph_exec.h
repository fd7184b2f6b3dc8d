// A graph that can be launched. Its nodes run on streams of its own: a node follows another on one of them only where it waits for it
// anyway; all else is ordered by events, so that what no edge orders runs at once or in any order.
#pragma once

#include "simulated_cuda/streams/capture.h"

namespace dp::simt {

class GraphExec {
 public:
  explicit GraphExec(const Graph& graph);
  ~GraphExec();  // when it is done
  GraphExec(const GraphExec&) = delete;
  GraphExec& operator=(const GraphExec&) = delete;

  void launch(Stream& stream);
  bool runs() const;

  bool uploaded = false;

 private:
  struct Node {
    Work work;
    Stream* recorded_on;
    Stream* lane;                             // runs it
    Event* done = nullptr;                    // for who waits on another lane
    std::uint64_t position = 0;               // of the record, in this launch
    std::vector<std::size_t> on_other_lanes;  // nodes that it waits for there
    bool first = false, last = false;         // waits for none; none waits for it
  };
  Stream* lane_for(const Graph& graph, std::size_t number);

  std::vector<Node> nodes_;
  std::vector<Stream*> lanes_;
  std::vector<std::size_t> last_on_lane_;  // nodes
  Event* begun_ = nullptr;
};

// Of graphs that were destroyed while they ran: frees those that have ended, or waits for all.
void free_destroyed_graphs(bool wait);

}  // namespace dp::simt
