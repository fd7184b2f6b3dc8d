#include "kernels/device/cuda/context.h"

#include <algorithm>

#include "dp/error.h"
#include "kernels/device/cuda/cuda_backend.h"
#include "kernels/device/cuda/graph.h"
#include "kernels/device/cuda/libraries/libraries.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/fused/cuda_unfused.h"
#include "kernels/tuning/trial.h"

namespace dp::kernels::cuda {
namespace {

class CudaBuffer final : public Buffer {
 public:
  CudaBuffer(int device, std::size_t bytes)
      : device_(device), memory_(device_memory(std::max<std::size_t>(bytes, 1))), bytes_(bytes) {}
  void* data() override { return memory_.get(); }
  std::size_t bytes() const override { return bytes_; }
  void read(void* dst, const void* src, std::size_t bytes) const override {
    bind_device(device_);
    const StreamHandle stream = make_stream_handle();
    check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, stream.get()), "copying to the host");
    check(cudaStreamSynchronize(stream.get()), "copying to the host");
  }

 private:
  int device_;
  DeviceMemory memory_;
  std::size_t bytes_;
};

int attribute(int device, cudaDeviceAttr which, const char* what) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), what);
  return value;
}

// The part of a tuning key for options that allow more candidates.
std::string variant_of(const CudaOpOptions& options) {
  std::string variant = std::string(options.tf32 ? " tf32" : "") + (options.fast_convolutions ? " fast" : "");
  for (const std::string& family : removed_families()) variant += " without " + family;
  return variant;
}

}  // namespace

CudaOpOptions options_of_device(int device) {
  bind_device(device);
  CudaOpOptions options;
  options.multiprocessors = attribute(device, cudaDevAttrMultiProcessorCount, "reading the number of multiprocessors");
  options.compute_capability =
      10 * attribute(device, cudaDevAttrComputeCapabilityMajor, "reading the compute capability") +
      attribute(device, cudaDevAttrComputeCapabilityMinor, "reading the compute capability");
  options.wgmma = options.compute_capability == 90 && has_wgmma();
  options.compute_capability = std::min(options.compute_capability, compiled_capability());
  options.shared_memory = static_cast<std::size_t>(
      attribute(device, cudaDevAttrMaxSharedMemoryPerBlockOptin, "reading the shared memory size"));
  return options;
}

CudaContext::CudaContext(Device device, const ContextOptions& options) : device_(device), options_(options) {
  if (const DType type = activation_type(); type != DType::f32 && type != DType::bf16 && type != DType::f16)
    throw Error(ErrorCode::usage,
                std::string("activations must be float32, bfloat16 or float16, not ") + to_string(type));
  bind_thread();
  op_options_ = options_of_device(device.index);
  op_options_.deterministic = options.deterministic;
  op_options_.tf32 = options.tf32;
  op_options_.fast_convolutions = options.fast_convolutions;
  op_options_.libraries = std::make_shared<Libraries>(device.index);
  memory_stream_ = make_stream_handle();
  collective_order_.prepare();
  staging_.prepare();
  const KernelLoading loading;
  upload_bytes(nullptr, "", 1, nullptr);
}

std::unique_ptr<Buffer> CudaContext::allocate(std::size_t bytes) {
  bind_thread();
  auto buffer = std::make_unique<CudaBuffer>(device_.index, bytes);
  if (bytes == 0) return buffer;
  check(cudaMemsetAsync(buffer->data(), 0, bytes, memory_stream_.get()), "clearing new memory");
  check(cudaStreamSynchronize(memory_stream_.get()), "clearing new memory");
  return buffer;
}

std::unique_ptr<Stream> CudaContext::make_stream(StreamUse use) {
  bind_thread();
  return std::make_unique<CudaStream>(device_.index, use, staging_, streams_, guards_, options_.abort);
}

void CudaContext::reserve_copies(std::size_t bytes) {
  bind_thread();
  staging_.reserve(bytes);
}

std::unique_ptr<Event> CudaContext::make_event() {
  bind_thread();
  return std::make_unique<CudaEvent>();
}

std::unique_ptr<Op> CudaContext::make_op(const OpDesc& desc) {
  bind_thread();
  check_shapes(desc, DType::f32, LowPrecision::allowed);
  std::unique_ptr<CudaOp> baseline = baseline_op(desc);
  Tuner::Choice choice;
  if (!tries()) {
    choice.op = untried(desc, std::move(baseline), op_options_);
  } else if (!has_candidates(desc)) {
    choice.op = std::move(baseline);
  } else {
    ++count_;
    choice = choose(desc, std::move(baseline));
    ++count_;
  }
  load(desc, *choice.op, choice.ran);
  return as_op(std::move(choice));
}

// Loads the op's kernels before the first collective (docs/decisions/0028). A choice from the cache, or from another
// device's trial, has not run on this device.
void CudaContext::load(const OpDesc& desc, CudaOp& op, bool ran) const {
  if (!op.uses_libraries())
    op.load_kernels();
  else if (!ran)
    run_once(trial_arguments(desc), op);
}

std::unique_ptr<CudaOp> CudaContext::baseline_op(const OpDesc& desc) const {
  return std::visit([&](const auto& op) { return make(op, op_options_); }, desc);
}

Tuner::Choice CudaContext::choose(const OpDesc& desc, std::unique_ptr<CudaOp> baseline) {
  Tuner::Others others{own_candidates(desc, *baseline, op_options_),
                       [&, problem = problem_of(desc, *baseline)] { return more_candidates(problem, desc); },
                       [&] { return untried(desc, baseline_op(desc), op_options_); }};
  return tuner().choose(desc, std::move(baseline), others, variant_of(op_options_));
}

// Library candidates, cached per problem. For a fused op also the unfused op with the chosen convolution.
std::vector<Candidate> CudaContext::more_candidates(const std::string& problem, const OpDesc& desc) {
  auto known = library_candidates_.find(problem);
  if (known == library_candidates_.end())
    known = library_candidates_.emplace(problem, library_candidates(desc, op_options_)).first;
  std::vector<Candidate> candidates = known->second;
  const std::vector<std::string> removed = removed_families();
  const bool with_unfused = std::ranges::find(removed, family::unfused) == removed.end();
  if (const auto convolution = inner_convolution(desc); convolution && with_unfused) {
    auto baseline = baseline_op(*convolution);
    const std::string ordinary = baseline->implementation();
    auto chosen = std::make_shared<std::unique_ptr<CudaOp>>(choose(*convolution, std::move(baseline)).op);
    if (const std::string name = (*chosen)->implementation(); name != ordinary)
      candidates.push_back(
          {family::unfused, unfused_name(name), [=, this] { return unfused(desc, std::move(*chosen), op_options_); }});
  }
  return candidates;
}

Tuner& CudaContext::tuner() {
  if (tuner_ == nullptr) tuner_ = &tuner_of(device_.index);
  return *tuner_;
}

Rates CudaContext::rates() {
  bind_thread();
  return measured_rates(device_.index, activation_type(), op_options_);
}

NormFusion CudaContext::norm_fusion() const {
  if (options_.norm_fusion != NormFusion::measured) return options_.norm_fusion;
  return tries() ? NormFusion::measured : NormFusion::never;
}

std::optional<double> CudaContext::seconds_of(const OpDesc& desc) {
  if (!tries() || trial_arguments(desc).empty()) return {};
  bind_thread();
  check_shapes(desc, DType::f32, LowPrecision::allowed);
  std::unique_ptr<CudaOp> baseline = baseline_op(desc);
  std::optional<double> microseconds = tuner().known_microseconds(desc, *baseline, variant_of(op_options_));
  if (!microseconds) microseconds = choose(desc, std::move(baseline)).microseconds;
  if (!microseconds) return {};
  return *microseconds * 1e-6;
}

bool CudaContext::idle() {
  bind_thread();
  check_all(guards_);
  if (std::all_of(streams_.begin(), streams_.end(), [](const CudaStream* stream) { return stream->idle(); }))
    return true;
  if (options_.abort == nullptr || !*options_.abort) return false;
  if (!working_since_abort_) working_since_abort_ = abort_clock();
  if (abort_clock() - *working_since_abort_ > kAbortPatience) handles_abandoned = true;
  return handles_abandoned;
}

LabelSeconds CudaContext::take_seconds() {
  bind_thread();
  LabelSeconds seconds{};
  for (CudaStream* const stream : streams_) stream->take_seconds(seconds);
  return seconds;
}

// Instantiation allocates and takes a driver lock, so all streams are synchronised first. The order of collectives
// restarts before and after the capture: CUDA does not allow waits for events across its boundary.
void CudaContext::begin_graph(Stream* root) {
  bind_thread();
  for (CudaStream* const stream : streams_) stream->suspend_timing();
  for (CudaStream* const stream : streams_) stream->synchronize();
  collective_order_.restart();
  if (root != nullptr) begin_capture(of_cuda(*root).native());
}

void CudaContext::resume() {
  for (CudaStream* const stream : streams_) stream->resume_timing();
  collective_order_.restart();
}

std::unique_ptr<Graph> CudaContext::end_graph(Stream* root) {
  bind_thread();
  std::unique_ptr<Graph> graph;
  if (root != nullptr) {
    auto made = std::make_unique<CudaGraph>(end_capture(of_cuda(*root).native()), guards_, graphs_);
    made->upload(of_cuda(*root));
    graph = std::move(made);
  }
  resume();
  return graph;
}

void CudaContext::drop_graph(Stream* root) noexcept {
  if (root != nullptr) drop_capture(of_cuda(*root).native());
  resume();
}

std::vector<std::string> CudaContext::kernels_of(Stream& stream, const std::function<void()>& enqueue) {
  begin_graph(&stream);
  LaunchNames launched;
  try {
    enqueue();
  } catch (...) {
    drop_graph(&stream);
    throw;
  }
  const std::unique_ptr<Graph> graph = end_graph(&stream);
  launched.names.resize(std::max(launched.names.size(), graph->nodes()), "other");
  return std::move(launched.names);
}

}  // namespace dp::kernels::cuda
