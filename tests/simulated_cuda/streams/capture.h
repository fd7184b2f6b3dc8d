// Stream capture: work is recorded to a graph and not executed.
//
// Stricter than CUDA: every thread that has recorded work counts as capturing. Calls that are forbidden to it are
// refused in every mode except the relaxed one.
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
  Stream* stream;                  // the stream that recorded it
  std::vector<std::size_t> after;  // the nodes that it depends on, with smaller numbers
};

// The object behind a cudaGraph_t.
struct Graph {
  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  std::vector<GraphNode> nodes;
};
void held_by_graph(const Work& work, int by);  // +1: another graph or instantiated graph contains it; -1: one fewer

struct Capture {
  std::uint64_t number = 0;  // among all captures
  Stream* origin = nullptr;
  std::thread::id thread;
  cudaStreamCaptureMode mode{};
  bool ended = false, invalid = false;
  std::unique_ptr<Graph> graph;
  // For every work item and wait of a captured stream, in call order: the earlier items that it follows directly.
  std::vector<std::vector<std::size_t>> moves;
  std::set<Stream*> streams;
  std::set<std::thread::id> threads;  // that have recorded work
  std::atomic<bool> busy{false};      // a thread is recording now
  char token = 0;                     // its address identifies the graph
};

// Enqueues the work on the stream, or adds it to the graph if the stream is captured.
cudaError_t submit(Stream& stream, const Work& work, const char* call);
// The same for events. Returns false if neither the stream nor the event is part of a capture.
bool record_captured(Stream& stream, Event& event, cudaError_t& result);
bool wait_captured(Stream& stream, Event& event, cudaError_t& result);

// Errors for calls that a capture forbids. They invalidate the capture. First: queries and synchronisation of this
// stream, or of this event.
cudaError_t refuse_if_captured(Stream& stream, const char* call);
cudaError_t refuse_if_captured(Event& event, const char* call);
// Second: calls that touch several streams, from a capturing thread or, in global mode, from any thread.
cudaError_t refuse_while_capturing(const char* call);

std::size_t live_graphs();  // including instantiated ones
void graphs_changed(int by);
void forget_captures();

}  // namespace dp::simt
