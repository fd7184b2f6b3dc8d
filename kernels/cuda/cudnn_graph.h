// A convolution as a graph of cuDNN's operations: forward with its bias and ReLU, data gradient, weight gradient.
#pragma once

#include <optional>

#include "kernels/cuda/cudnn_descriptor.h"
#include "kernels/ops.h"

namespace dp::kernels::cuda {

// Where plans are made: on the device of a handle, or, without a device, by what cuDNN (9.8 and newer) is told of one.
struct CudnnTarget {
  const CudnnApi* api = nullptr;
  CudnnHandle handle = nullptr;
  const CudnnDescriptor* device_properties = nullptr;  // where there is no handle
};

// Layouts are resolved. x and y are the gradients where the direction says so.
struct CudnnConvolution {
  enum class Direction { forward, backward_data, backward_weights };
  Direction direction = Direction::forward;
  TensorDesc x, w, y;
  Window window;
  bool bias = false, relu = false;  // forward
};

// What the graph's tensors are called in a variant pack; also their order in Op::run, but for those that are not there.
enum CudnnTensorId : std::int64_t { kCudnnX = 1, kCudnnW = 2, kCudnnBias = 3, kCudnnY = 4 };

class CudnnGraph {
 public:
  // CudnnRefusal where cuDNN does not know the types or the layouts.
  CudnnGraph(const CudnnTarget& target, const CudnnConvolution& convolution);
  const CudnnDescriptor& get() const { return graph_; }

 private:
  CudnnDescriptor& add(CudnnKind kind) { return parts_.emplace_back(*api_, kind); }

  const CudnnApi* api_;
  std::vector<CudnnDescriptor> parts_;  // that the graph consists of
  CudnnDescriptor graph_;
};

}  // namespace dp::kernels::cuda
