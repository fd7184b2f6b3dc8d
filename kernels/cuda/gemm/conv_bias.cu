#include "kernels/cuda/gemm/conv_bias.h"

#include <algorithm>

#include "kernels/cuda/ops/pack.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kChannels = 32, kLanes = 8;  // of a block
constexpr int kChunkCells = 1024, kMostChunks = 256;

// A block adds one chunk of cells for kChannels channels. blockIdx: tile of channels,
// chunk. The sums of chunk c are stored at out + c * channels.
template <typename T>
__global__ void __launch_bounds__(kChannels* kLanes)
    bias_gradient_kernel(const T* dy, float* out, Strides strides, int channels, int cells, int height, int width,
                         int chunk) {
  DP_SHARED(float, lanes, [kLanes][kChannels]);
  const int at = static_cast<int>(threadIdx.x) % kChannels, lane = static_cast<int>(threadIdx.x) / kChannels;
  const int channel = static_cast<int>(blockIdx.x) * kChannels + at;
  const int begin = static_cast<int>(blockIdx.y) * chunk, end = min(cells, begin + chunk);
  float sum = 0;
  if (channel < channels)
    for (int cell = begin + lane; cell < end; cell += kLanes) {
      const int line = cell / width;
      sum += to_float(dy[strides.of_cell(line / height, line % height, cell % width) + channel * strides.channel]);
    }
  lanes[lane][at] = sum;
  __syncthreads();
  if (lane != 0 || channel >= channels) return;
  for (int other = 1; other < kLanes; ++other) sum += lanes[other][at];
  out[static_cast<long long>(blockIdx.y) * channels + channel] = sum;
}

}  // namespace

BiasGradient::BiasGradient(DType type, const Geometry& g)
    : type_(type),
      strides_(g.y),
      channels_(g.out_channels),
      cells_(g.batch * g.out_height * g.out_width),
      height_(g.out_height),
      width_(g.out_width),
      chunks_(std::clamp((cells_ + kChunkCells - 1) / kChunkCells, 1, kMostChunks)) {}

void BiasGradient::enqueue(cudaStream_t stream, const void* dy, float* db, float* workspace) const {
  const unsigned blocks = blocks_for(channels_, kChannels);
  const int chunk = (cells_ + chunks_ - 1) / chunks_;
  in_type(type_, [&]<typename T>() {
    launch({"bias_gradient", dim3(blocks, static_cast<unsigned>(chunks_)), dim3(kChannels * kLanes), stream},
           bias_gradient_kernel<T>, static_cast<const T*>(dy), workspace, strides_, channels_, cells_, height_, width_,
           chunk);
  });
  const Strides dense{channels_, channels_, channels_, 1};
  launch({"bias_gradient", dim3(blocks), dim3(kChannels * kLanes), stream}, bias_gradient_kernel<float>,
         static_cast<const float*>(workspace), db, dense, channels_, chunks_, 1, 1, chunks_);
}

}  // namespace dp::kernels::cuda
