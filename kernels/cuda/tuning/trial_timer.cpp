#include "kernels/cuda/tuning/trial_timer.h"

#include <algorithm>

#include "dp/error.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/graph.h"

namespace dp::kernels::cuda {
namespace {

constexpr std::size_t kMostCopies = 16;  // small problems stay in the cache, as in a step of a small network
constexpr std::size_t kBeyondCache = 2;  // in multiples of the cache size

std::size_t bytes_of_cache() {
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device), "reading the current device");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device), "reading the L2 cache size");
  return static_cast<std::size_t>(std::max(bytes, 0));
}

// Null if memory is short.
DeviceMemory memory_if_free(std::size_t bytes) {
  try {
    return bytes == 0 ? DeviceMemory() : device_memory(bytes);
  } catch (const Error&) {
    cudaGetLastError();
    return {};
  }
}

}  // namespace

TrialTimer::TrialTimer(cudaStream_t stream, std::vector<Argument> arguments)
    : stream_(stream),
      begin_(make_timed_event_handle()),
      end_(make_timed_event_handle()),
      arguments_(std::move(arguments)),
      overwritten_bytes_(kBeyondCache * bytes_of_cache()),
      overwritten_(memory_if_free(overwritten_bytes_)) {
  std::size_t bytes = 0;
  std::vector<void*> own;
  for (const Argument& argument : arguments_) bytes += argument.bytes, own.push_back(argument.data);
  copies_.push_back(std::move(own));
  if (bytes > 0) most_copies_ = std::clamp<std::size_t>((overwritten_bytes_ + bytes - 1) / bytes, 1, kMostCopies);
}

// Makes one copy per run, up to most_copies_. Lowers most_copies_ if memory is short.
void TrialTimer::copy_arguments(int runs) {
  while (copies_.size() < std::min(most_copies_, static_cast<std::size_t>(runs))) {
    std::vector<void*> copy;
    for (const Argument& argument : arguments_) {
      if (argument.bytes == 0) {
        copy.push_back(nullptr);
        continue;
      }
      DeviceMemory memory = memory_if_free(argument.bytes);
      if (!memory) {
        most_copies_ = copies_.size();
        return;
      }
      check(cudaMemcpyAsync(memory.get(), argument.data, argument.bytes, cudaMemcpyDeviceToDevice, stream_),
            "copying the data of a trial");
      copy.push_back(memory.get());
      memory_.push_back(std::move(memory));
    }
    copies_.push_back(std::move(copy));
  }
}

TrialTimer::Runs TrialTimer::prepare(CudaOp& op, int count, void* workspace) {
  copy_arguments(count);
  Runs runs{{}, count};
  try {
    begin_capture(stream_);
    for (int i = 0; i < count; ++i) op.run_on(stream_, arguments_of(i), workspace);
    const GraphHandle graph = end_capture(stream_);
    cudaGraphExec_t exec = nullptr;
    check(cudaGraphInstantiate(&exec, graph.get(), 0), "instantiating a graph");
    runs.graph = GraphExecHandle(exec);
    check(cudaGraphUpload(exec, stream_), "uploading a graph");
  } catch (const Error&) {
    drop_capture(stream_);
    runs.graph = {};
  }
  return runs;
}

// Overwriting the cache also keeps the device busy until the host has enqueued the rest.
double TrialTimer::microseconds_of(const Runs& runs, CudaOp& op, void* workspace) {
  if (overwritten_)
    check(cudaMemsetAsync(overwritten_.get(), 0, overwritten_bytes_, stream_), "overwriting the L2 cache");
  check(cudaEventRecord(begin_.get(), stream_), "recording an event");
  if (runs.graph)
    check(cudaGraphLaunch(runs.graph.get(), stream_), "launching a graph");
  else
    for (int i = 0; i < runs.count; ++i) op.run_on(stream_, arguments_of(i), workspace);
  check(cudaEventRecord(end_.get(), stream_), "recording an event");
  check(cudaEventSynchronize(end_.get()), "a trial");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "measuring a trial");
  return 1e3 * static_cast<double>(milliseconds) / runs.count;
}

}  // namespace dp::kernels::cuda
