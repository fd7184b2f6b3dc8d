// GatherImages: a block writes part of an image, in the element order of x.
#include "dp/augmentation.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/pack.h"
#include "kernels/device/cuda/philox.h"
#include "kernels/op_args.h"
#include "kernels/step_state.h"

namespace dp::kernels::cuda {
namespace {

constexpr unsigned kThreads = 256, kEach = 16;  // elements per thread

struct GatherShape {
  unsigned channels = 1, rows = 1, cols = 1;
  unsigned parts = 1;  // blocks per image
};

template <bool kChannelsLast>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const std::int64_t* samples, const GatherInputs* inputs, float* x, GatherShape shape) {
  DP_SHARED(Crop, crop, [1]);
  const unsigned n = blockIdx.x / shape.parts, part = blockIdx.x % shape.parts;
  const std::int64_t sample = samples[n];
  if (threadIdx.x == 0) {
    DeviceRandom random(inputs->seed, RandomUse::augment, inputs->epoch, static_cast<std::uint64_t>(sample));
    crop[0] = inputs->augment ? draw_crop(random, inputs->padding, inputs->flip) : Crop{};
  }
  __syncthreads();
  const int down = static_cast<int>(crop[0].down), right = static_cast<int>(crop[0].right);
  const bool flip = crop[0].flip;
  const int rows = static_cast<int>(shape.rows), cols = static_cast<int>(shape.cols);
  const unsigned pixels = shape.rows * shape.cols, count = shape.channels * pixels;
  const std::uint8_t* const image = inputs->images + sample * count;
  const float* const statistics = inputs->statistics;
  float* const to = x + static_cast<long long>(n) * count;
  const unsigned end = min(count, (part + 1) * kThreads * kEach);
  for (unsigned i = part * kThreads * kEach + threadIdx.x; i < end; i += kThreads) {
    const unsigned channel = kChannelsLast ? i % shape.channels : i / pixels;
    const unsigned pixel = kChannelsLast ? i / shape.channels : i % pixels;
    const int j = static_cast<int>(pixel % shape.cols);
    const int row = static_cast<int>(pixel / shape.cols) + down, col = (flip ? cols - 1 - j : j) + right;
    const bool inside = row >= 0 && row < rows && col >= 0 && col < cols;
    const float byte = inside ? image[channel * pixels + row * cols + col] : 0;
    to[i] = (byte / 255.0f - statistics[channel]) / statistics[shape.channels + channel];
  }
}

class GatherOp final : public CudaOp {
 public:
  explicit GatherOp(const GatherImages& desc) {
    tensors_ = {resolved_channels_last(desc.x)};
    const TensorDesc& x = tensors_[0];
    channels_last_ = order_of(x).channels_last;
    if (index_count(x) == 0) return;
    batch_ = static_cast<unsigned>(x.shape[0]);
    shape_ = {static_cast<unsigned>(x.shape[1]), static_cast<unsigned>(x.shape[2]), static_cast<unsigned>(x.shape[3]),
              blocks_for(x.shape.without_first().numel(), kThreads * kEach)};
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<GatherImages>(pointers);
    if (batch_ == 0) return;
    launch({"gather_images", dim3(batch_ * shape_.parts), dim3(kThreads), stream},
           channels_last_ ? gather_kernel<true> : gather_kernel<false>, args.samples, args.inputs, args.x, shape_);
  }

 private:
  bool channels_last_;
  unsigned batch_ = 0;
  GatherShape shape_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const GatherImages& desc, const CudaOpOptions&) {
  return std::make_unique<GatherOp>(desc);
}

}  // namespace dp::kernels::cuda
