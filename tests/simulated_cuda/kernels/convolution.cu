// Implicit GEMM. Tile: 64 pixels x 64 output channels x 32 of the inner dimension; four warps of 32x32.
#include "device_code.h"
#include "ptx.h"
#include "simulated_cuda/kernels/samples.h"

namespace dp::simt::test {
namespace {

namespace ptx = kernels::cuda::ptx;
using bf16 = __nv_bfloat16;

constexpr int kTile = 64, kDepth = 32;
constexpr int kPitch = 40;  // elements per tile row: a multiple of 16 bytes without bank conflicts for ldmatrix

__global__ void __launch_bounds__(128)
    convolution_kernel(const bf16* __restrict__ x, const bf16* __restrict__ w, bf16* __restrict__ y, int images,
                       int height, int width, int in, int out) {
  DP_DYNAMIC_SHARED(bf16, tiles);
  const auto pixel_tile = [&](int buffer, int row, int k) { return tiles + (buffer * 128 + row) * kPitch + k; };
  const auto weight_tile = [&](int buffer, int row, int k) { return tiles + (buffer * 128 + 64 + row) * kPitch + k; };
  const int t = threadIdx.x, warp = t / 32, lane = t % 32;
  const int pixel0 = blockIdx.x * kTile, out0 = blockIdx.y * kTile, pixels = images * height * width;
  const int warp_pixel = warp % 2 * 32, warp_out = warp / 2 * 32, steps = 9 * (in / kDepth);
  float sums[2][4][4] = {};
  const auto fetch = [&](int step, int buffer) {
    const int tap = step / (in / kDepth), channel = step % (in / kDepth) * kDepth;
    const int dy = tap / 3 - 1, dx = tap % 3 - 1;
    for (int i = 0; i < 2; ++i) {
      const int row = (t + i * 128) / 4, k = (t + i * 128) % 4 * 8, pixel = pixel0 + row;
      const int px = pixel % width + dx, py = pixel / width % height + dy;
      const bool inside = pixel < pixels && px >= 0 && px < width && py >= 0 && py < height;
      const bf16* const from = inside ? x + static_cast<size_t>(pixel + dy * width + dx) * in + channel + k : x;
      ptx::cp_async16(pixel_tile(buffer, row, k), from, inside);
      ptx::cp_async16(weight_tile(buffer, row, k), w + (static_cast<size_t>(out0 + row) * 9 + tap) * in + channel + k);
    }
    ptx::cp_async_commit();
  };
  fetch(0, 0);
  for (int step = 0; step < steps; ++step) {
    const int buffer = step % 2;
    if (step + 1 < steps) {
      fetch(step + 1, buffer ^ 1);
      ptx::cp_async_wait<1>();
    } else {
      ptx::cp_async_wait<0>();
    }
    __syncthreads();
    for (int k = 0; k < kDepth; k += 16) {
      unsigned a[2][4], b[2][4];
      for (int i = 0; i < 2; ++i) {
        ptx::ldmatrix_x4(a[i], pixel_tile(buffer, warp_pixel + i * 16 + lane % 16, k + lane / 16 * 8));
        ptx::ldmatrix_x4(b[i], weight_tile(buffer, warp_out + i * 16 + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8));
      }
      for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 4; ++j) {
          const unsigned pair[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
          ptx::mma_m16n8k16_bf16(sums[i][j], a[i], pair);
        }
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 4; ++j) {
      for (int half = 0; half < 2; ++half) {
        const int pixel = pixel0 + warp_pixel + i * 16 + lane / 4 + half * 8;
        const int channel = out0 + warp_out + j * 8 + lane % 4 * 2;
        if (pixel < pixels)
          *reinterpret_cast<__nv_bfloat162*>(y + static_cast<size_t>(pixel) * out + channel) =
              __floats2bfloat162_rn(sums[i][j][half * 2], sums[i][j][half * 2 + 1]);
      }
    }
  }
}

}  // namespace

void convolution(const bf16* x, const bf16* w, bf16* y, int images, int height, int width, int in, int out,
                 cudaStream_t stream) {
  const dim3 grid(kernels::cuda::blocks_for(images * height * width, kTile), kernels::cuda::blocks_for(out, kTile));
  const std::size_t tiles = 2 * 128 * kPitch * sizeof(bf16);
  kernels::cuda::launch({"convolution_kernel", grid, 128, stream, tiles}, convolution_kernel, x, w, y, images, height,
                        width, in, out);
}

}  // namespace dp::simt::test
