// Conversion of a chunk of eight 16-bit values to floats and back, and its batch normalisation.
#pragma once

#include "kernels/cuda/ops/batch_norm.h"
#include "kernels/cuda/tensor_core/conv_mma_windows.h"
#include "kernels/low_float.h"
#include "ptx.h"

namespace dp::kernels::cuda {

template <typename Low>
__device__ __forceinline__ unsigned rounded_pair(float low, float high) {
  if constexpr (std::is_same_v<Low, BFloat16>)
    return ptx::pack_bf16(low, high);
  else
    return ptx::pack_f16(low, high);
}

template <typename Low>
__device__ __forceinline__ float2 floats_of(unsigned pair) {
  if constexpr (std::is_same_v<Low, BFloat16>)
    return make_float2(to_float(BFloat16{static_cast<std::uint16_t>(pair & 0xffffu)}),
                       to_float(BFloat16{static_cast<std::uint16_t>(pair >> 16)}));
  else
    return ptx::unpack_f16(pair);
}

struct ChunkValues {
  float v[kChunk];
};
template <typename Low>
__device__ __forceinline__ ChunkValues values_of(const uint4& chunk) {
  const float2 pairs[] = {floats_of<Low>(chunk.x), floats_of<Low>(chunk.y), floats_of<Low>(chunk.z),
                          floats_of<Low>(chunk.w)};
  ChunkValues values;
  for (int k = 0; k < kChunk; ++k) values.v[k] = k % 2 == 0 ? pairs[k / 2].x : pairs[k / 2].y;
  return values;
}
template <typename Low>
__device__ __forceinline__ uint4 rounded(const ChunkValues& values) {
  const auto pair = [&](int k) { return rounded_pair<Low>(values.v[k], values.v[k + 1]); };
  return make_uint4(pair(0), pair(2), pair(4), pair(6));
}

// NormAffine of neighbouring channels, in shared memory.
template <int channels>
struct NormNumbers {
  float shift[channels], scale[channels], offset[channels];

  __device__ void set(int at, const NormAffine& own) {
    shift[at] = own.shift, scale[at] = own.scale, offset[at] = own.offset;
  }
  // max(0, x normalised) for eight channels starting at `at`; not rounded.
  __device__ ChunkValues rectified_chunk(int at, const ChunkValues& x) const {
    ChunkValues z;
    for (int k = 0; k < kChunk; ++k)
      z.v[k] = rectified(normalized(x.v[k], shift[at + k], scale[at + k], offset[at + k]));
    return z;
  }
};

}  // namespace dp::kernels::cuda
