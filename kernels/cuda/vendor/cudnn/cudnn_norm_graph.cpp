#include "kernels/cuda/vendor/cudnn/cudnn_norm_graph.h"

namespace dp::kernels::cuda {
namespace {

using Tensor = CudnnGraphBuilder::Tensor;

CudnnTensor activation(std::int64_t id, const TensorDesc& desc) { return tensor_of(id, desc, /*batched=*/true); }

// The input of the convolution: x, or x normalised.
Tensor input(CudnnGraphBuilder& graph, const CudnnNormConvolution& c) {
  const CudnnTensor spec = activation(kCudnnX, c.convolution.x);
  const std::int64_t channels = c.convolution.x.shape[1];
  Tensor x = graph.tensor(spec);
  if (!c.norm) return x;
  Tensor scaled = graph.between(spec), normal = graph.between(spec), z = graph.between(spec, spec.type);
  graph.multiply(x, graph.tensor(per_channel(kCudnnScale, channels, spec.type)), scaled);
  graph.add(scaled, graph.tensor(per_channel(kCudnnBias, channels, spec.type)), normal);
  graph.relu(normal, z);
  return z;
}

void forward_or_weights(CudnnGraphBuilder& graph, const CudnnNormConvolution& c) {
  const CudnnConvolution& own = c.convolution;
  Tensor x = input(graph, c), w = graph.tensor(tensor_of(kCudnnW, own.w, /*batched=*/false)),
         y = graph.tensor(activation(kCudnnY, own.y));
  graph.convolve(own.direction, own.window, x, w, y);
  if (!c.statistics) return;
  const std::int64_t channels = own.y.shape[1];
  graph.statistics(y, graph.tensor(per_channel(kCudnnSum, channels)),
                   graph.tensor(per_channel(kCudnnSquares, channels)));
}

// The batch normalisation whose output gradient is computed.
struct Normalized {
  Tensor x, mean, inv_std, scale, z;
};
Normalized normalized(CudnnGraphBuilder& graph, const TensorDesc& desc) {
  const CudnnTensor like = activation(kCudnnX, desc);
  const auto numbers = [&](std::int64_t id) -> Tensor { return graph.tensor(per_channel(id, desc.shape[1])); };
  const Normalized own{graph.tensor(like), numbers(kCudnnMean), numbers(kCudnnInvStd), numbers(kCudnnScale),
                       graph.between(like)};
  Tensor centred = graph.between(like), xhat = graph.between(like), scaled = graph.between(like);
  graph.subtract(own.x, own.mean, centred);
  graph.multiply(centred, own.inv_std, xhat);
  graph.multiply(xhat, own.scale, scaled);
  graph.add(scaled, numbers(kCudnnBias), own.z);
  return own;
}

void data_gradient(CudnnGraphBuilder& graph, const CudnnNormConvolution& c) {
  const CudnnConvolution& own = c.convolution;
  const CudnnTensor like = activation(kCudnnX, own.x);
  Tensor dy = graph.tensor(activation(kCudnnY, own.y)), w = graph.tensor(tensor_of(kCudnnW, own.w, /*batched=*/false)),
         dz = graph.tensor(activation(kCudnnDz, own.x));
  const CudnnDescriptor* gradient = &graph.between(like);
  graph.convolve(own.direction, own.window, *gradient, w, dy);
  if (c.add) {
    Tensor both = c.mask ? graph.between(like) : dz;
    graph.add(*gradient, graph.tensor(activation(kCudnnDy2, own.x)), both);
    gradient = &both;
  }
  if (!c.mask) return;
  const auto result = [&]() -> Tensor { return graph.tensor(activation(kCudnnResult, own.x)); };
  if (c.result && !c.sums) return graph.relu_backward(*gradient, result(), dz);
  const Normalized norm = normalized(graph, own.x);
  const CudnnDescriptor* z = &norm.z;
  if (c.result) {
    Tensor sum = graph.between(like);
    graph.add(norm.z, result(), sum);
    z = &sum;
  }
  graph.relu_backward(*gradient, *z, dz);
  if (!c.sums) return;
  const auto sums = [&](std::int64_t id) -> Tensor { return graph.tensor(per_channel(id, own.x.shape[1])); };
  graph.norm_backward({norm.x, dz, norm.mean, norm.inv_std, norm.scale, sums(kCudnnDScale), sums(kCudnnDBias),
                       sums(kCudnnDyFactor), sums(kCudnnXFactor), sums(kCudnnConstant)});
}

}  // namespace

std::shared_ptr<const CudnnGraph> norm_convolution_graph(const CudnnTarget& target, const CudnnNormConvolution& c) {
  CudnnGraphBuilder graph(target);
  if (c.convolution.direction == CudnnDirection::backward_data)
    data_gradient(graph, c);
  else
    forward_or_weights(graph, c);
  return graph.finish();
}

}  // namespace dp::kernels::cuda
