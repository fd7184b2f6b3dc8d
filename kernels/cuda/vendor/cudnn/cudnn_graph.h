// Graphs of cuDNN's operations: what is computed, before anything is said of how.
#pragma once

#include <deque>
#include <memory>

#include "kernels/cuda/vendor/cudnn/cudnn_descriptor.h"
#include "kernels/cuda/vendor/libraries.h"
#include "kernels/ops.h"

namespace dp::kernels::cuda {

// Where plans are made: on the device of a handle, or, without a device, by what cuDNN (9.8 and newer) is told of one.
struct CudnnTarget {
  const CudnnApi* api = nullptr;
  CudnnHandle handle = nullptr;
  const CudnnDescriptor* device_properties = nullptr;  // where there is no handle
};

// What the tensors in memory are called in a variant pack.
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
  kCudnnBetween  // from here on: in no memory
};

struct CudnnTensor {
  std::int64_t id;
  CudnnType type;
  std::array<std::int64_t, 4> dimensions, strides;
  std::int64_t alignment = kTensorAlignment;
  bool is_virtual = false;
};
// `batched`: it may begin with any sample of a batch. CudnnRefusal for a type that cuDNN does not convolve.
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
  std::deque<CudnnDescriptor> parts_;  // that it consists of
  CudnnDescriptor graph_;
};

// All arithmetic is of float32. Every function throws CudnnRefusal where cuDNN does not know what it is told.
class CudnnGraphBuilder {
 public:
  using Tensor = const CudnnDescriptor&;  // lives as long as the graph

  explicit CudnnGraphBuilder(const CudnnTarget& target) : target_(target) {}

  Tensor tensor(const CudnnTensor& tensor);
  // Between operations, like another one.
  Tensor between(CudnnTensor like, CudnnType type = CudnnType::f32);

  // x and y are the gradients where the direction says so.
  void convolve(CudnnDirection direction, const Window& window, Tensor x, Tensor w, Tensor y);
  void relu(Tensor x, Tensor y);
  void multiply(Tensor a, Tensor b, Tensor y) { binary(CudnnPointwise::multiply, a, b, 1, y); }
  void add(Tensor a, Tensor b, Tensor y) { binary(CudnnPointwise::add, a, b, 1, y); }
  void subtract(Tensor a, Tensor b, Tensor y) { binary(CudnnPointwise::add, a, b, -1, y); }  // as its patterns have it
  void relu_backward(Tensor dy, Tensor x, Tensor dx);                                        // x > 0 ? dy : 0
  void statistics(Tensor x, Tensor sum, Tensor squares);
  // What batch normalisation's backward pass says of its weights, and, as factors, of its input.
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
