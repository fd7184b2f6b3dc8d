// Graphs of cuDNN operations: what to compute, independent of engines.
#pragma once

#include <deque>
#include <memory>

#include "kernels/cuda/vendor/cudnn/cudnn_descriptor.h"
#include "kernels/cuda/vendor/libraries.h"
#include "kernels/ops.h"

namespace dp::kernels::cuda {

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

}  // namespace dp::kernels::cuda
