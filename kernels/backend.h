// What a kind of device offers: contexts (one per replica), and in them memory, streams, events and ops.
//
// Threads: a Context, its streams, events, ops and buffers are used by one thread, the replica's. What crosses
// replicas goes through a Communicator (communicator.h) and nowhere else.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dp/device.h"
#include "dp/error.h"
#include "kernels/communicator.h"
#include "kernels/ops.h"
#include "kernels/rendezvous.h"
#include "kernels/trace_ring.h"

namespace dp::kernels {

// Shared by the replicas of one engine: once raised, every wait inside a backend ends by throwing Aborted.
using AbortFlag = std::atomic<bool>;
struct Aborted : std::runtime_error {
  Aborted() : std::runtime_error("stopped because another replica failed") {}
};

class Event {
 public:
  virtual ~Event() = default;
};

// Work in order. The semantics are CUDA's: calls return at once and the work may run later; a wait holds back later work of
// this stream until the event's latest record has been reached; waiting for an event never recorded is no wait.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void record(Event& event) = 0;
  virtual void wait(Event& event) = 0;
  virtual void label(std::size_t label) = 0;  // what the work enqueued from now on is counted as; below kLabels
  // Which of those it is, for whoever reports on it: any number that the caller understands.
  virtual void detail(std::uint64_t) {}
  // From now on notes finished work there; null ends that. The ring outlives the stream. Devices that are behind note what they
  // are told to do only when it is done: a further call with the same ring waits for that.
  virtual void trace(TraceRing*) {}
  virtual void copy(void* dst, const void* src,
                    std::size_t bytes) = 0;  // from the host or the device to the device; src must stay valid
  // From the device to the host, after all earlier work: done when it returns, as synchronize() returns. Where that throws, nothing is
  // written to dst any more.
  virtual void download(void* dst, const void* src, std::size_t bytes) = 0;
  virtual void upload(void* dst, const void* src,
                      std::size_t bytes) = 0;  // src is read before the call returns; at most 256 bytes
  virtual void synchronize() = 0;              // returns when all work is done; throws the first exception of that work
  virtual void synchronize(Event& event) = 0;  // returns when the event's latest record has been reached
};

// Work that was recorded once and can be launched any number of times, by one thread. Goes before the context that made it.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(Stream& stream) = 0;  // enqueues all of it, as one piece of work
  virtual std::size_t nodes() const = 0;    // kernels, copies and fills
};

// Kinds of work that a context keeps apart when it adds up seconds.
inline constexpr std::size_t kLabels = 9;
using LabelSeconds = std::array<double, kLabels>;

// What a device can do at best, in a second; zeros where nobody knows.
struct Rates {
  double flops = 0;    // of its activations' type; a multiplication and an addition are two
  double bytes = 0;    // read and written
  std::string source;  // "measured", or by what
};

// How far a context is, as seen from outside.
struct StreamProgress {
  std::uint64_t count = 0;   // differs from before when work was finished
  bool waits = false;        // for another replica: the work below is not ready
  std::size_t label = 0;     // of it
  std::uint64_t detail = 0;  // of it
};

inline constexpr int kMaxOpArgs = 12;

// One operation, bound to shapes and layouts, ready to run any number of times.
class Op {
 public:
  virtual ~Op() = default;
  // Enqueues. `args` as the descriptor says. `workspace` has workspace_bytes() and is shared by all ops of the stream.
  virtual void run(Stream& stream, std::span<void* const> args, void* workspace) = 0;
  virtual std::size_t workspace_bytes() const { return 0; }
  // The TensorDescs of the descriptor in its order of members, layouts resolved.
  virtual const std::vector<TensorDesc>& tensors() const = 0;
  virtual std::string implementation() const = 0;  // "jit:avx2", "plain": for --print-plan
};

// What a stream is for: a device may run communication before other work that is ready at the same time.
enum class StreamUse { work, communication };

// Owner of device memory; 64-byte aligned, zeroed.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() = 0;
  virtual std::size_t bytes() const = 0;
  // From this memory to the host's; returns when it is done. Not for the step: streams copy there.
  virtual void read(void* dst, const void* src, std::size_t bytes) const = 0;
};

// Whether plans take fused ops in place of the ops that those name: of batch normalisation (NormConv2dForward and its like) and of small
// layers (Context::fuses). measured: those of batch normalisation where ops are tried out, and by what they take.
enum class NormFusion { measured, always, never };

struct ContextOptions {
  int threads = 1;         // CPU: of this replica
  std::vector<int> cores;  // CPU: one per thread, empty: not pinned
  bool deterministic = false;
  bool fast_convolutions = false;  // may round several times as much, where that is much faster
  bool autotune = false;  // ops of the same result may be tried out, and the fastest taken; not with deterministic
  NormFusion norm_fusion = NormFusion::measured;
  // bf16 or f16: mixed precision, with activations and the weights that layers read in that type. Error(usage) from a backend without.
  std::optional<DType> activations{};
  bool tf32 = false;  // float32 layers may round what they multiply to 10 bits, where a device is faster so
  // Test mode of host backends: every stream runs on a thread of its own, with pseudo-random delays from this seed.
  bool threaded_streams = false;
  std::uint64_t delay_seed = 0;
  // Test mode of host backends: pretends that the host cannot dereference device memory, so that inputs are copied.
  bool discrete_memory = false;
  bool peer_processes = false;  // the other replicas are processes: see allocate_for_peers
  AbortFlag* abort = nullptr;   // not owned; may be null
};

class Context {
 public:
  virtual ~Context() = default;
  virtual Device device() const = 0;
  virtual DType compute_type() const = 0;  // of parameters, gradients, momenta
  // Of activations, their gradients, and the weights that convolutions and linear layers read: the same, or ContextOptions::activations.
  virtual DType activation_type() const { return compute_type(); }
  // Of one element in this context's memory: the reference keeps the 16-bit types as float64.
  virtual std::size_t element_bytes(DType type) const { return size_of(type); }
  virtual bool host_accessible() const = 0;  // device memory is host memory: inputs need no copy
  // Called by a thread before its first use of this context: binds the device, or pins the thread.
  virtual void bind_thread() = 0;
  virtual std::unique_ptr<Buffer> allocate(std::size_t bytes) = 0;  // Error(device) with bytes asked and free
  // For what communicators carry: memory that the replicas of other processes can reach, where they need to.
  virtual std::unique_ptr<Buffer> allocate_for_peers(std::size_t bytes) { return allocate(bytes); }
  virtual std::unique_ptr<Stream> make_stream(StreamUse use = StreamUse::work) = 0;
  // Allocates what copies of up to `bytes` bytes from ordinary host memory need, so that they allocate nothing.
  virtual void reserve_copies(std::size_t /*bytes*/) {}
  virtual std::unique_ptr<Event> make_event() = 0;
  // Error(usage) naming op and shapes when they do not fit.
  virtual std::unique_ptr<Op> make_op(const OpDesc& desc) = 0;
  // Whether a plan takes this op of fused_layers.h in place of its members.
  virtual bool fuses(const OpDesc&) const { return false; }
  virtual NormFusion norm_fusion() const { return NormFusion::never; }
  // Of one run of the op that make_op would make, by itself; nothing where ops are not tried out.
  virtual std::optional<double> seconds_of(const OpDesc&) { return {}; }
  // The row-major layout of a shape; what files and host tensors use.
  virtual Layout plain_layout(const Shape& shape, DType type) = 0;
  // The tensor's memory order for elements of another type. For contexts with mixed precision.
  virtual Layout with_type(const TensorDesc& tensor, DType type) = 0;
  // Returns when everything enqueued so far will complete without further calls from this thread. Contexts whose streams
  // run inside the calling thread work off their queues here.
  virtual void flush() = 0;
  // Whether everything enqueued so far is done; its results may then be read. Never blocks.
  virtual bool idle() = 0;
  // Seconds that work took since the last call, by label, waiting left out: what has run by now. Called between pieces of work
  // that belong together: on devices that are behind, what ran at the time of a call is counted by a later one.
  virtual LabelSeconds take_seconds() = 0;
  // Graphs, where a device has them. From begin_graph(&root) to end_graph(&root) what is enqueued on `root`, and on every stream that waits
  // for an event recorded there, goes into a graph and is not done. Meanwhile nothing may be allocated, waited for by the host, or copied
  // from ordinary host memory, no wait may be for what came before, and in the end `root` must have waited for all the others. A context
  // whose streams come into another context's graph makes both calls with null, before its first and after the last stream's part in it.
  // Nothing of it is timed.
  virtual bool has_graphs() const { return false; }
  virtual void begin_graph(Stream* /*root*/) {}
  virtual std::unique_ptr<Graph> end_graph(Stream* /*root*/) { return nullptr; }  // null for null
  virtual void drop_graph(Stream* /*root*/) noexcept {}  // in place of end_graph, after an error
  // What `enqueue` puts on the stream: kernels by name, in their order, then "other" for each copy, fill and kernel of a library. None of
  // it runs. Empty without graphs.
  virtual std::vector<std::string> kernels_of(Stream& /*stream*/, const std::function<void()>& /*enqueue*/) {
    return {};
  }

  // From any thread, at any time. Says nothing where the device does not tell.
  virtual StreamProgress stream_progress() const { return {}; }
  // Names what the calling thread does until end_range(), for profilers that know of this device; ranges nest.
  virtual void begin_range(const char*) {}
  virtual void end_range() {}
  // May take a second; between steps, by the thread that the context is bound to.
  virtual Rates rates() { return {}; }
};

// A communicator's name, and why it is the default.
struct CommunicatorChoice {
  std::string name, reason;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual DeviceProbe probe() const = 0;
  virtual std::unique_ptr<Context> open(Device device, const ContextOptions& options) = 0;
  // One handle per context, in rank order; all contexts are this backend's. Error(usage) for a name it does not know.
  virtual std::vector<std::unique_ptr<Communicator>> make_communicators(std::string_view name,
                                                                        std::span<Context* const> contexts) = 0;
  // `fixed_order`: sums in the order of communicator.h are asked for.
  virtual CommunicatorChoice default_communicator(std::span<const Device> devices, bool fixed_order) const = 0;
  // The handle of this process's context, when every rank of the world is a process with one context of this kind. All ranks
  // call it together. Error(usage) for a name that does not cross processes, or not these.
  virtual std::unique_ptr<Communicator> join(std::string_view name, Context& context, Rendezvous& rendezvous) = 0;
  virtual CommunicatorChoice default_communicator(const Rendezvous& rendezvous) const = 0;
  // A figure that was found by timing on these devices, kept from run to run where this kind of device keeps any.
  virtual std::optional<double> remembered(std::span<const Device>, const std::string&) { return {}; }
  virtual void remember(std::span<const Device>, const std::string&, double) {}
  virtual std::size_t free_memory(Device device) const = 0;  // bytes that could be had now; 0: unknown
  virtual std::string describe() const = 0;  // libraries and devices, a line each, as describe_environment() has them
};

// The backend of that kind, made on first use; Error(device) naming the reason when there is none.
Backend& backend(DeviceKind kind);

}  // namespace dp::kernels
