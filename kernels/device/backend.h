// The interface of a device backend. A backend opens contexts, one per replica. A context owns memory, streams, events
// and ops.
//
// Threading: one thread, the replica's, uses a Context and its streams, events, ops and buffers, unless a member says
// otherwise. Replicas exchange data only through a Communicator (communicator.h).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "dp/device.h"
#include "dp/error.h"
#include "kernels/comm/communicator.h"
#include "kernels/device/trace_ring.h"
#include "kernels/ops.h"

namespace dp::kernels {

// Shared by all replicas of an engine. Once it is set, every wait inside a backend throws Aborted.
using AbortFlag = std::atomic<bool>;
struct Aborted : std::runtime_error {
  Aborted() : std::runtime_error("stopped because another replica failed") {}
};

class Event {
 public:
  virtual ~Event() = default;
};

// An in-order queue of work with CUDA stream semantics. Calls return immediately and the work may run later. wait()
// delays later work of this stream until the work before the event's latest record() is done. Waiting for an event that
// was never recorded has no effect.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void record(Event& event) = 0;
  virtual void wait(Event& event) = 0;
  virtual void label(std::size_t label) = 0;  // label of all later work, for take_seconds() and traces; < kLabels
  // A number chosen by the caller, e.g. a bucket or layer, stored with all later work. Traces and StreamProgress report
  // it.
  virtual void detail(std::uint64_t) {}
  // Adds a span to the ring for each later piece of work that finishes; null stops this. The ring must outlive the
  // stream. An asynchronous device adds a span after its work is done; a further call with the same ring waits for
  // outstanding work.
  virtual void trace(TraceRing*) {}
  // Copies from host or device memory to device memory. src must stay valid until the copy is done.
  virtual void copy(void* dst, const void* src, std::size_t bytes) = 0;
  // Copies from the device to the host after all earlier work. Returns when the copy is done. Throws as synchronize()
  // does; after an exception nothing is written to dst.
  virtual void download(void* dst, const void* src, std::size_t bytes) = 0;
  // Copies at most 256 bytes from the host to the device. Reads src before it returns.
  virtual void upload(void* dst, const void* src, std::size_t bytes) = 0;
  virtual void synchronize() = 0;              // returns when all work is done; throws the first exception of that work
  virtual void synchronize(Event& event) = 0;  // returns when all work before the event's latest record is done
};

// A recorded sequence of work that one thread can launch any number of times. Destroy it before the context that made
// it.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(Stream& stream) = 0;  // enqueues the whole graph as one piece of work
  virtual std::size_t nodes() const = 0;    // number of kernels, copies and fills
};

// Number of labels. A context measures the time of each label separately.
inline constexpr std::size_t kLabels = 9;
using LabelSeconds = std::array<double, kLabels>;

// Peak rates of a device per second; 0 if unknown.
struct Rates {
  double flops = 0;    // in the activation type; a multiply-add counts as two
  double bytes = 0;    // bytes read plus bytes written
  std::string source;  // "measured", or where the figures are from
};

// Progress of a context, readable from any thread.
struct StreamProgress {
  std::uint64_t count = 0;   // changes whenever the context makes progress
  bool waits = false;        // true: waits for another replica, in the work given below
  std::size_t label = 0;     // of the waiting work
  std::uint64_t detail = 0;  // of the waiting work
};

// An operation bound to shapes and layouts. It can run any number of times.
class Op {
 public:
  virtual ~Op() = default;
  // Enqueues the operation. `args`: the descriptor's Args in order; run_op() of op_args.h takes them by name.
  // `workspace` has at least workspace_bytes() bytes; all ops of a stream share it.
  virtual void run(Stream& stream, std::span<void* const> args, void* workspace) = 0;
  virtual std::size_t workspace_bytes() const { return 0; }
  // The descriptor's TensorDescs in member order, with resolved layouts.
  virtual const std::vector<TensorDesc>& tensors() const = 0;
  virtual std::string implementation() const = 0;  // for --print-plan, e.g. "jit:avx2" or "plain"
};

// Purpose of a stream. A device may prefer communication streams over other ready work.
enum class StreamUse { work, communication };

// Owns device memory. It is 64-byte aligned and initially zero.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() = 0;
  virtual std::size_t bytes() const = 0;
  // Blocking copy from this buffer to host memory. Not for use in a training step; use Stream::download there.
  virtual void read(void* dst, const void* src, std::size_t bytes) const = 0;
};

// Whether plans use fused ops: fused batch normalisation (NormConv2dForward and the other NormConv2d ops) and fused
// small layers (Context::fuses). measured: uses fused batch normalisation where ops are autotuned and the fused op is
// faster.
enum class NormFusion { measured, always, never };

struct ContextOptions {
  int threads = 1;         // CPU: threads of this replica
  std::vector<int> cores;  // CPU: one core per thread; empty: not pinned
  bool deterministic = false;
  bool fast_convolutions = false;  // allows much faster algorithms with several times the rounding error
  // Times the candidates of each op and uses the fastest one. Ignored if `deterministic`.
  bool autotune = false;
  NormFusion norm_fusion = NormFusion::measured;
  // bf16 or f16: mixed precision. Activations, and the weights that layers read, have this type. Error(usage) from a
  // backend without mixed precision.
  std::optional<DType> activations{};
  bool tf32 = false;  // float32 layers may round their factors to TF32 (10-bit mantissa) where that is faster
  // Test mode of host backends: each stream runs on its own thread, with pseudo-random delays drawn from delay_seed.
  bool threaded_streams = false;
  std::uint64_t delay_seed = 0;
  // Test mode of host backends: host_accessible() returns false, hence inputs are copied.
  bool discrete_memory = false;
  bool peer_processes = false;  // other replicas run in other processes: see allocate_for_peers
  AbortFlag* abort = nullptr;   // not owned; may be null
};

class Context {
 public:
  virtual ~Context() = default;
  virtual Device device() const = 0;
  virtual DType compute_type() const = 0;  // type of parameters, gradients and optimizer state
  // Type of activations, their gradients, and the weights that convolutions and linear layers read:
  // ContextOptions::activations if set, else compute_type().
  virtual DType activation_type() const { return compute_type(); }
  // Bytes of one element in this context's memory. The reference backend stores the 16-bit types as float64.
  virtual std::size_t element_bytes(DType type) const { return size_of(type); }
  virtual bool host_accessible() const = 0;  // true: the host can access device memory, hence inputs need no copy
  // A thread calls this before its first use of the context. Makes the device current, or pins the thread to its cores.
  virtual void bind_thread() = 0;
  virtual std::unique_ptr<Buffer> allocate(std::size_t bytes) = 0;  // Error(device) with the bytes requested and free
  // Memory for data that communicators transfer. Replicas in other processes can map it if the backend's communicators
  // need that.
  virtual std::unique_ptr<Buffer> allocate_for_peers(std::size_t bytes) { return allocate(bytes); }
  virtual std::unique_ptr<Stream> make_stream(StreamUse use = StreamUse::work) = 0;
  // Allocates the staging memory for copies of up to `bytes` bytes from pageable host memory, so that these copies
  // allocate nothing.
  virtual void reserve_copies(std::size_t /*bytes*/) {}
  virtual std::unique_ptr<Event> make_event() = 0;
  // Error(usage) with the op and its shapes if the shapes do not match.
  virtual std::unique_ptr<Op> make_op(const OpDesc& desc) = 0;
  // Whether a plan uses this op of fused/op.h in place of its members.
  virtual bool fuses(const OpDesc&) const { return false; }
  virtual NormFusion norm_fusion() const { return NormFusion::never; }
  // Measured seconds of one run of the op that make_op would return. Empty if ops are not autotuned.
  virtual std::optional<double> seconds_of(const OpDesc&) { return {}; }
  // The row-major layout of a shape, as used by files and host tensors.
  virtual Layout plain_layout(const Shape& shape, DType type) = 0;
  // The tensor's memory order for elements of another type. For contexts with mixed precision.
  virtual Layout with_type(const TensorDesc& tensor, DType type) = 0;
  // After flush(), all enqueued work completes without further calls from this thread. Contexts with inline streams run
  // their queues here.
  virtual void flush() = 0;
  // Whether all enqueued work is done and its results may be read. Never blocks.
  virtual bool idle() = 0;
  // Seconds of finished work since the last call, by label, without waiting times. Call it between training steps. On
  // an asynchronous device, work that still runs is counted by a later call.
  virtual LabelSeconds take_seconds() = 0;
  // Graph capture, for devices with graphs. Between begin_graph(&root) and end_graph(&root), work on `root`, and on
  // every stream that waits for an event recorded on `root`, is recorded into a graph and does not run. During capture:
  // - nothing may allocate, synchronise with the host, or copy from pageable host memory;
  // - no stream may wait for an event that was recorded before the capture;
  // - all forked streams must rejoin `root` before end_graph().
  // If streams of a context are captured into another context's graph, the context calls begin_graph(nullptr) before
  // its first captured work and end_graph(nullptr) after its last. Timing is suspended during capture.
  virtual bool has_graphs() const { return false; }
  virtual void begin_graph(Stream* /*root*/) {}
  virtual std::unique_ptr<Graph> end_graph(Stream* /*root*/) { return nullptr; }  // null if `root` is null
  virtual void drop_graph(Stream* /*root*/) noexcept {}  // call it in place of end_graph after an error
  // The work that `enqueue` puts on the stream: kernel names in launch order, then "other" for each copy, fill and
  // library kernel. Nothing runs. Empty if the device has no graphs.
  virtual std::vector<std::string> kernels_of(Stream& /*stream*/, const std::function<void()>& /*enqueue*/) {
    return {};
  }

  // Callable from any thread at any time. All zero if the device does not report progress.
  virtual StreamProgress stream_progress() const { return {}; }
  // Opens a named range on the calling thread for profilers (NVTX on CUDA). end_range() closes it. Ranges nest.
  virtual void begin_range(const char*) {}
  virtual void end_range() {}
  // May take about a second. Call it between steps, on the thread that is bound to the context.
  virtual Rates rates() { return {}; }
};

// The default communicator's name and why it is the default.
struct CommunicatorChoice {
  std::string name, reason;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual DeviceProbe probe() const = 0;
  // The UUID of a GPU, as nvidia-smi prints it; indices may change. Empty for the host. Creates no context.
  virtual std::string identity(Device) const { return {}; }
  virtual std::unique_ptr<Context> open(Device device, const ContextOptions& options) = 0;
  // Returns one handle per context, in rank order. All contexts must belong to this backend. Error(usage) for an
  // unknown name.
  virtual std::vector<std::unique_ptr<Communicator>> make_communicators(std::string_view name,
                                                                        std::span<Context* const> contexts) = 0;
  // `fixed_order`: the caller requires the fixed summation order of communicator.h.
  virtual CommunicatorChoice default_communicator(std::span<const Device> devices, bool fixed_order) const = 0;
  // Collective over all ranks of the process group. Each rank is a process with one context of this kind. Returns the
  // handle of this process's context. Error(usage) if the communicator cannot connect these processes.
  virtual std::unique_ptr<Communicator> join(std::string_view name, Context& context, Rendezvous& rendezvous) = 0;
  virtual CommunicatorChoice default_communicator(const Rendezvous& rendezvous) const = 0;
  // A link from one context to another, both of this backend. Called while no thread uses them.
  virtual std::unique_ptr<Link> make_link(Context& sender, Context& receiver) = 0;
  // True if a link also has a queue on the receiver's device, as large as the sender's.
  virtual bool links_have_two_queues() const { return false; }
  // A value measured on these devices and stored by remember(), possibly in an earlier run. Empty if there is none.
  virtual std::optional<double> remembered(std::span<const Device>, const std::string&) { return {}; }
  virtual void remember(std::span<const Device>, const std::string&, double) {}
  virtual std::size_t free_memory(Device device) const = 0;  // bytes that can be allocated now; 0: unknown
  virtual std::string describe() const = 0;  // one line per library and device, for describe_environment()
};

// The backend of this kind, created on first use. Error(device) with the reason if there is none.
Backend& backend(DeviceKind kind);

// Graph capture is not thread-safe. This lock serialises the threads that record one graph. A thread releases the lock
// while it waits for another thread.
class CaptureTurn {
 public:
  // Thrown by a wait for another thread after give_up().
  struct GivenUp : std::runtime_error {
    GivenUp() : std::runtime_error("another replica's graph capture failed") {}
  };

  void take() { mutex_.lock(); }
  void pass() { mutex_.unlock(); }

  void give_up() { given_up_.store(true, std::memory_order_relaxed); }
  bool given_up() const { return given_up_.load(std::memory_order_relaxed); }
  void begin_anew() { given_up_.store(false, std::memory_order_relaxed); }  // call it while no thread records

  // Releases the lock for the lifetime of this object.
  class Passed {
   public:
    explicit Passed(CaptureTurn& turn) : turn_(turn) { turn_.pass(); }
    ~Passed() { turn_.take(); }
    Passed(const Passed&) = delete;
    Passed& operator=(const Passed&) = delete;

   private:
    CaptureTurn& turn_;
  };

 private:
  std::mutex mutex_;
  std::atomic<bool> given_up_{false};
};

}  // namespace dp::kernels
