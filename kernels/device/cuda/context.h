// One replica on one GPU: its memory, its streams, its ops.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/graph.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/device/cuda/stream.h"
#include "kernels/fused/cuda_fused_layers.h"
#include "kernels/tuning/tuner.h"

namespace dp::kernels::cuda {

// Runs the collectives of one device one after another, in call order, across all streams and communicators. Every rank
// makes the calls in the same order, so all devices agree. Concurrent collectives could wait for each other across
// devices forever.
class CollectiveOrder {
 public:
  // Call before the first collective, with the device bound.
  void prepare() { done_ = make_event_handle(); }
  // Call begin() before and end() after `communicator` enqueues on `stream`. Each communicator uses only one stream.
  void begin(const void* communicator, CudaStream& stream) {
    if (last_ != nullptr && last_ != communicator) stream.wait(done_.get());
  }
  void end(const void* communicator, CudaStream& stream) {
    check(cudaEventRecord(done_.get(), stream.native()), "recording an event");
    last_ = communicator;
  }
  // The next collective waits for no event. Its stream must order it after all earlier ones.
  void restart() { last_ = nullptr; }
  // Call when the communicator is destroyed. Another one may get its address.
  void forget(const void* communicator) {
    if (last_ == communicator) last_ = this;
  }

 private:
  EventHandle done_;
  const void* last_ = nullptr;  // communicator whose collective done_ follows
};

// The options that depend on the device and on the compiled code. Makes the device the calling thread's current one.
CudaOpOptions options_of_device(int device);

// Every call makes the device the calling thread's current one.
class CudaContext final : public Context {
 public:
  // Error(device) when the device cannot be used.
  CudaContext(Device device, const ContextOptions& options);

  Device device() const override { return device_; }
  DType compute_type() const override { return DType::f32; }
  DType activation_type() const override { return options_.activations.value_or(DType::f32); }
  bool host_accessible() const override { return false; }
  void bind_thread() override { bind_device(device_.index); }
  std::unique_ptr<Buffer> allocate(std::size_t bytes) override;
  std::unique_ptr<Stream> make_stream(StreamUse use = StreamUse::work) override;
  void reserve_copies(std::size_t bytes) override;
  std::unique_ptr<Event> make_event() override;
  std::unique_ptr<Op> make_op(const OpDesc& desc) override;
  bool fuses(const OpDesc& desc) const override {
    return options_.norm_fusion != NormFusion::never && cuda::fuses(desc);
  }
  NormFusion norm_fusion() const override;
  std::optional<double> seconds_of(const OpDesc& desc) override;
  Layout plain_layout(const Shape& shape, DType type) override { return plain(shape, type); }
  Layout with_type(const TensorDesc& tensor, DType type) override { return cuda::with_type(tensor, type); }
  void flush() override {}  // streams run without further calls
  // After an abort, unfinished work counts as done after kAbortPatience: it may wait for a broken device.
  bool idle() override;
  LabelSeconds take_seconds() override;
  StreamProgress stream_progress() const override { return {.count = count_.load(std::memory_order_relaxed)}; }
  void begin_range(const char* name) override { cuda::begin_range(name); }
  void end_range() override { cuda::end_range(); }
  Rates rates() override;
  bool has_graphs() const override { return true; }
  void begin_graph(Stream* root) override;
  std::unique_ptr<Graph> end_graph(Stream* root) override;
  void drop_graph(Stream* root) noexcept override;
  std::vector<std::string> kernels_of(Stream& stream, const std::function<void()>& enqueue) override;

  AbortFlag* abort() const { return options_.abort; }
  Guards& guards() { return guards_; }
  GraphList& graphs() { return graphs_; }
  CollectiveOrder& collective_order() { return collective_order_; }

 private:
  bool tries() const { return options_.autotune && !options_.deterministic; }
  Tuner& tuner();
  std::unique_ptr<CudaOp> baseline_op(const OpDesc& desc) const;
  void load(const OpDesc& desc, CudaOp& op, bool ran) const;
  Tuner::Choice choose(const OpDesc& desc, std::unique_ptr<CudaOp> baseline);
  std::vector<Candidate> more_candidates(const std::string& problem, const OpDesc& desc);
  void resume();

  Device device_;
  ContextOptions options_;
  CudaOpOptions op_options_;
  Staging staging_;
  StreamHandle memory_stream_;  // clears new memory
  StreamList streams_;
  std::optional<std::chrono::steady_clock::time_point> working_since_abort_;  // set by the first idle() after it
  Guards guards_;
  GraphList graphs_;
  CollectiveOrder collective_order_;
  Tuner* tuner_ = nullptr;  // of this kind of device; null until first used
  // Library candidates by problem. Asking the libraries takes tens of milliseconds.
  std::map<std::string, std::vector<Candidate>> library_candidates_;
  std::atomic<std::uint64_t> count_{0};  // incremented before and after each choice: trials take a while
};

}  // namespace dp::kernels::cuda
