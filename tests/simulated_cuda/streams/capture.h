// Streams whose work is recorded to a graph instead of done.
//
// Stricter than CUDA where that depends on the mode: a thread that has recorded anything counts as one that captures, and what it
// may not call is refused in every mode but the relaxed one.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "simulated_cuda/streams/stream.h"

namespace dp::simt {

struct GraphNode {
  Work work;
  Stream* stream;                  // on which it was recorded
  std::vector<std::size_t> after;  // nodes that it waits for; all have smaller numbers
};

// What a cudaGraph_t stands for.
struct Graph {
  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  std::vector<GraphNode> nodes;
};
void held_by_graph(const Work& work, int by);  // one more graph, or instance of one, holds it; -1: one fewer

struct Capture {
  std::uint64_t number = 0;  // among all captures
  Stream* origin = nullptr;
  std::thread::id thread;
  cudaStreamCaptureMode mode{};
  bool ended = false, invalid = false;
  std::unique_ptr<Graph> graph;
  // Of every piece of work and every wait of a captured stream, in the order of the calls: the earlier ones that it follows.
  std::vector<std::vector<std::size_t>> moves;
  std::set<Stream*> streams;
  std::set<std::thread::id> threads;  // that have recorded something
  std::atomic<bool> busy{false};      // a thread is recording just now
  char token = 0;                     // its address stands for the graph
};

// The work goes to the stream or, where that is captured, to the graph.
cudaError_t submit(Stream& stream, const Work& work, const char* call);
// The same for events. False: nothing of it concerns a capture.
bool record_captured(Stream& stream, Event& event, cudaError_t& result);
bool wait_captured(Stream& stream, Event& event, cudaError_t& result);

// Errors of what a capture forbids, which spoils it: anything that asks whether this stream, or the work before this event, is done ...
cudaError_t refuse_if_captured(Stream& stream, const char* call);
cudaError_t refuse_if_captured(Event& event, const char* call);
// ... and calls that touch more than one stream, from a thread that captures or while anybody does in the global mode.
cudaError_t refuse_while_capturing(const char* call);

std::size_t live_graphs();  // and what has been instantiated of them
void graphs_changed(int by);
void forget_captures();

}  // namespace dp::simt
