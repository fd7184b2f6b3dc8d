// Wrappers of cuDNN's backend API: descriptors, operation graphs, plans and their execution.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device/cuda/libraries/cudnn_api.h"
#include "kernels/device/cuda/libraries/libraries.h"
#include "kernels/ops.h"

namespace dp::kernels::cuda {

// Descriptors of cuDNN's backend interface: sets of attributes that are filled, finalized, and then read.

// cuDNN does not support a request. Not an error of the run during the search for candidates.
struct CudnnRefusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Throws CudnnRefusal with cuDNN's message unless the status is success.
void expect(const CudnnApi& api, CudnnStatus status, const char* what);
std::string describe(const CudnnApi& api, CudnnStatus status);  // "CUDNN_STATUS_X (its last message)"

template <typename T>
struct CudnnElement;  // maps a C++ type to its attribute type
template <CudnnAttributeType attribute>
struct CudnnElementIs {
  static constexpr CudnnAttributeType type = attribute;
};
template <>
struct CudnnElement<std::int64_t> : CudnnElementIs<CudnnAttributeType::i64> {};
template <>
struct CudnnElement<float> : CudnnElementIs<CudnnAttributeType::f32> {};
template <>
struct CudnnElement<bool> : CudnnElementIs<CudnnAttributeType::boolean> {};
template <>
struct CudnnElement<char> : CudnnElementIs<CudnnAttributeType::character> {};
template <>
struct CudnnElement<void*> : CudnnElementIs<CudnnAttributeType::pointer> {};
template <>
struct CudnnElement<CudnnHandle> : CudnnElementIs<CudnnAttributeType::handle> {};
template <>
struct CudnnElement<CudnnType> : CudnnElementIs<CudnnAttributeType::data_type> {};
template <>
struct CudnnElement<CudnnConvolutionMode> : CudnnElementIs<CudnnAttributeType::convolution_mode> {};
template <>
struct CudnnElement<CudnnHeuristics> : CudnnElementIs<CudnnAttributeType::heuristics_mode> {};
template <>
struct CudnnElement<CudnnPointwise> : CudnnElementIs<CudnnAttributeType::pointwise_mode> {};
template <>
struct CudnnElement<CudnnNan> : CudnnElementIs<CudnnAttributeType::nan_propagation> {};
template <>
struct CudnnElement<CudnnStatistics> : CudnnElementIs<CudnnAttributeType::statistics_mode> {};
template <>
struct CudnnElement<CudnnKnob> : CudnnElementIs<CudnnAttributeType::knob_type> {};
template <>
struct CudnnElement<CudnnBehavior> : CudnnElementIs<CudnnAttributeType::behavior> {};
template <>
struct CudnnElement<CudnnNote> : CudnnElementIs<CudnnAttributeType::note> {};

class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  CudnnDescriptor(const CudnnApi& api, CudnnKind kind);
  CudnnDescriptor(CudnnDescriptor&& other) noexcept
      : api_(other.api_), descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept {
    std::swap(api_, other.api_), std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~CudnnDescriptor() {
    if (descriptor_ != nullptr) api_->destroy_descriptor(descriptor_);
  }

  CudnnBackendDescriptor get() const { return descriptor_; }

  template <typename T>
  void set(CudnnAttribute name, std::span<const T> elements) {
    set_raw(name, CudnnElement<T>::type, elements.size(), elements.data());
  }
  template <typename T>
  void set(CudnnAttribute name, const T& element) {
    set(name, std::span<const T>(&element, 1));
  }
  void set(CudnnAttribute name, const CudnnDescriptor& descriptor) { set(name, std::array{descriptor.get()}); }
  template <std::size_t count>
  void set(CudnnAttribute name, const std::array<CudnnBackendDescriptor, count>& descriptors) {
    set_raw(name, CudnnAttributeType::descriptor, count, descriptors.data());
  }
  void set(CudnnAttribute name, const std::vector<CudnnBackendDescriptor>& descriptors) {
    set_raw(name, CudnnAttributeType::descriptor, descriptors.size(), descriptors.data());
  }
  void finalize();

  template <typename T>
  T element(CudnnAttribute name) const {
    T value{};
    if (get_raw(name, CudnnElement<T>::type, 1, &value) != 1)
      throw CudnnRefusal("a cuDNN descriptor lacks attribute " + std::to_string(static_cast<int>(name)));
    return value;
  }
  // At most `most` elements.
  template <typename T>
  std::vector<T> elements(CudnnAttribute name, std::size_t most) const {
    std::vector<T> values(most);
    values.resize(std::min(most, get_raw(name, CudnnElement<T>::type, most, values.data())));
    return values;
  }
  // At most `most` descriptors. cuDNN copies them into descriptors that the caller creates.
  std::vector<CudnnDescriptor> descriptors(CudnnAttribute name, CudnnKind kind, std::size_t most) const;

 private:
  void set_raw(CudnnAttribute name, CudnnAttributeType type, std::size_t count, const void* elements);
  std::size_t get_raw(CudnnAttribute name, CudnnAttributeType type, std::size_t most, void* elements) const;

  const CudnnApi* api_ = nullptr;
  CudnnBackendDescriptor descriptor_ = nullptr;
};

// Graphs of cuDNN operations: what to compute, independent of engines.

// The target of plans: the device of a handle, or, for cuDNN 9.8 and newer, a described device without a handle.
struct CudnnTarget {
  const CudnnApi* api = nullptr;
  CudnnHandle handle = nullptr;
  const CudnnDescriptor* device_properties = nullptr;  // used if handle is null
};

// Ids of the tensors in a variant pack.
enum CudnnTensorId : std::int64_t {
  kCudnnX = 1,
  kCudnnW,
  kCudnnBias,
  kCudnnY,
  kCudnnScale,
  kCudnnSum,
  kCudnnSquares,
  kCudnnMean,
  kCudnnInvStd,
  kCudnnDy2,
  kCudnnResult,
  kCudnnDz,
  kCudnnDScale,
  kCudnnDBias,
  kCudnnDyFactor,
  kCudnnXFactor,
  kCudnnConstant,
  kCudnnBetween  // ids from here on: virtual tensors
};

struct CudnnTensor {
  std::int64_t id;
  CudnnType type;
  std::array<std::int64_t, 4> dimensions, strides;
  std::int64_t alignment = kTensorAlignment;
  bool is_virtual = false;
};
// `batched`: the data may start at any sample of a batch, which limits its alignment. CudnnRefusal for a type that
// convolutions do not support.
CudnnTensor tensor_of(std::int64_t id, const TensorDesc& tensor, bool batched);
CudnnTensor per_channel(std::int64_t id, std::int64_t channels, CudnnType type = CudnnType::f32);
CudnnType cudnn_type(DType type);

enum class CudnnDirection { forward, backward_data, backward_weights };

class CudnnGraph {
 public:
  CudnnGraph(const CudnnTarget& target, std::deque<CudnnDescriptor> parts,
             const std::vector<CudnnBackendDescriptor>& operations);
  const CudnnDescriptor& get() const { return graph_; }

 private:
  std::deque<CudnnDescriptor> parts_;  // descriptors that the graph refers to
  CudnnDescriptor graph_;
};

// All arithmetic is float32. Every function throws CudnnRefusal if cuDNN rejects a descriptor.
class CudnnGraphBuilder {
 public:
  using Tensor = const CudnnDescriptor&;  // lives as long as the graph

  explicit CudnnGraphBuilder(const CudnnTarget& target) : target_(target) {}

  Tensor tensor(const CudnnTensor& tensor);
  // A virtual tensor between operations, with the shape of `like`.
  Tensor between(CudnnTensor like, CudnnType type = CudnnType::f32);

  // x is the gradient for backward_data, w for backward_weights. y is the output gradient in both.
  void convolve(CudnnDirection direction, const Window& window, Tensor x, Tensor w, Tensor y);
  void relu(Tensor x, Tensor y);
  void multiply(Tensor a, Tensor b, Tensor y) { binary(CudnnPointwise::multiply, a, b, 1, y); }
  void add(Tensor a, Tensor b, Tensor y) { binary(CudnnPointwise::add, a, b, 1, y); }
  void subtract(Tensor a, Tensor b, Tensor y) { binary(CudnnPointwise::add, a, b, -1, y); }  // as in cuDNN's patterns
  void relu_backward(Tensor dy, Tensor x, Tensor dx);                                        // x > 0 ? dy : 0
  void statistics(Tensor x, Tensor sum, Tensor squares);
  // The backward pass of batch normalisation: the gradients of its weights, and the factors of
  // dx = dy * dy_factor + x * x_factor + constant.
  struct NormBackward {
    Tensor x, dy, mean, inv_std, scale;
    Tensor dscale, dbias, dy_factor, x_factor, constant;
  };
  void norm_backward(const NormBackward& norm);

  std::shared_ptr<const CudnnGraph> finish();

 private:
  CudnnDescriptor& part(CudnnKind kind) { return parts_.emplace_back(*target_.api, kind); }
  CudnnDescriptor& pointwise(CudnnPointwise mode);
  void binary(CudnnPointwise mode, Tensor a, Tensor b, float factor, Tensor y);
  void finish_operation(CudnnDescriptor& operation);

  CudnnTarget target_;
  std::deque<CudnnDescriptor> parts_;
  std::vector<CudnnBackendDescriptor> operations_;
  std::int64_t next_ = kCudnnBetween;
};

// How cuDNN computes a graph: engine configurations from its heuristics, and their plans.

// Which engines are allowed. Engines that round inputs or sums to fewer bits than their types have are always rejected.
struct CudnnRules {
  bool deterministic = false;  // only engines with the same bits in every run
  bool tf32 = false;           // allow tensor cores for float32
  bool fast = false;           // allow Winograd and FFT
  bool is_f32 = false;         // all tensors are float32
};

class CudnnConfig {
 public:
  CudnnConfig(std::shared_ptr<const CudnnGraph> graph, CudnnDescriptor config);

  // The engine and its knobs: "eng12 k2=3 k13=1". The same in every run with the same cuDNN.
  const std::string& name() const { return name_; }
  bool has(CudnnNote note) const { return (notes_ >> static_cast<int>(note) & 1u) != 0; }
  bool allowed(const CudnnRules& rules) const;
  bool compiles() const { return compiles_; }  // making a plan compiles kernels: seconds
  const CudnnDescriptor& get() const { return config_; }

 private:
  std::shared_ptr<const CudnnGraph> graph_;  // the engine refers to it
  CudnnDescriptor config_;
  std::string name_;
  unsigned notes_ = 0;
  bool compiles_ = false;
};

inline constexpr int kMaxCompiledCudnnCandidates = 2;

// Distinct configurations, the fastest first by the heuristics. At most `most`, and at most kMaxCompiledCudnnCandidates
// that compile kernels.
std::vector<std::shared_ptr<const CudnnConfig>> configs_of(const CudnnTarget& target,
                                                           const std::shared_ptr<const CudnnGraph>& graph,
                                                           const CudnnRules& rules, std::size_t most);

class CudnnPlan {
 public:
  // CudnnRefusal if the engine does not support the graph after all.
  CudnnPlan(const CudnnTarget& target, std::shared_ptr<const CudnnConfig> config);
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  CudnnBackendDescriptor get() const { return plan_.get(); }

 private:
  std::shared_ptr<const CudnnConfig> config_;
  CudnnDescriptor plan_;
  std::size_t workspace_bytes_ = 0;
};

// Runs cuDNN plans.

// The pointers of one run: the tensors of the graph (null for absent ones) and the workspace.
class CudnnPointers {
 public:
  CudnnPointers(std::initializer_list<std::pair<CudnnTensorId, void*>> tensors, void* workspace);
  void* workspace() const { return pointers_[0]; }
  void* operator[](std::int64_t id) const { return pointers_[static_cast<std::size_t>(id)]; }
  bool operator==(const CudnnPointers&) const = default;

 private:
  std::array<void*, kCudnnBetween> pointers_{};  // indexed by id; 0: the workspace
};

// A plan that runs as part of the op `op`. `candidate` is the candidate's name.
class CudnnRun {
 public:
  CudnnRun(const char* op, std::string candidate, CudnnPlan plan, std::shared_ptr<Libraries> libraries);

  const std::string& candidate() const { return candidate_; }
  std::size_t workspace_bytes() const { return plan_.workspace_bytes(); }
  // Allocates nothing if the pointers are among the last four sets. The workspace must be aligned to kLibraryAlignment
  // bytes. Error(device) names the op, the candidate and the device.
  void enqueue(cudaStream_t stream, const CudnnPointers& pointers);
  // Error(device) if the pointer lacks the alignment stated in the graph.
  void check_alignment(const TensorDesc& tensor, const void* pointer) const;

 private:
  CudnnBackendDescriptor pack_of(const CudnnPointers& pointers);
  [[noreturn]] void fail(const std::string& why) const;
  void expect_run(CudnnStatus status) const;

  struct Pack {
    std::optional<CudnnPointers> pointers;
    CudnnDescriptor descriptor;
  };

  const char* op_;
  std::string candidate_;
  std::shared_ptr<Libraries> libraries_;
  const CudnnApi& api_;
  CudnnPlan plan_;
  // Creating a pack allocates host memory, so the last few are cached. Steps repeat the same pointers.
  std::array<Pack, 4> packs_;
  std::size_t next_ = 0;
};

}  // namespace dp::kernels::cuda
