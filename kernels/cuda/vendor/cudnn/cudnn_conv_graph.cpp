#include "kernels/cuda/vendor/cudnn/cudnn_conv_graph.h"

#include "kernels/cuda/runtime/tensor_layout.h"

namespace dp::kernels::cuda {

TensorDesc narrow_weights(const CudnnConvolution& c) { return {c.w.shape, c.x.type, with_type(c.w, c.x.type)}; }

std::shared_ptr<const CudnnGraph> convolution_graph(const CudnnTarget& target, const CudnnConvolution& c) {
  CudnnGraphBuilder graph(target);
  const auto& x = graph.tensor(tensor_of(kCudnnX, c.x, /*batched=*/true));
  const auto& w = graph.tensor(tensor_of(kCudnnW, c.w, /*batched=*/false));
  const CudnnTensor y = tensor_of(kCudnnY, c.y, /*batched=*/true);
  const CudnnDescriptor* result = &(c.bias || c.relu ? graph.between(y) : graph.tensor(y));
  graph.convolve(c.direction, c.window, x, w, *result);
  if (c.bias) {
    const auto& bias = graph.tensor(per_channel(kCudnnBias, c.w.shape[0]));
    const auto& sum = c.relu ? graph.between(y) : graph.tensor(y);
    graph.add(*result, bias, sum);
    result = &sum;
  }
  if (c.relu) graph.relu(*result, graph.tensor(y));
  return graph.finish();
}

}  // namespace dp::kernels::cuda
