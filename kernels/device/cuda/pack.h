// Packed loads and stores, and the order in which threads visit a tensor.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "device_code.h"
#include "dp/error.h"
#include "dp/shape.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/low_float.h"

namespace dp::kernels::cuda {

// Pack: one or several elements that a thread loads or stores at once. float32, bfloat16
// or float16 in memory, float in registers.

template <int kWidth>
struct Pack {
  static_assert(kWidth == 1 || kWidth == 4 || kWidth == 8);
  float v[kWidth];
};

// Elements per 16 bytes.
template <typename T>
inline constexpr int kWidePack = 16 / sizeof(T);

// `from` must be aligned to the whole pack.
template <int kWidth>
__device__ __forceinline__ Pack<kWidth> load_pack(const float* from) {
  Pack<kWidth> pack;
  if constexpr (kWidth == 4) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    pack.v[0] = four.x, pack.v[1] = four.y, pack.v[2] = four.z, pack.v[3] = four.w;
  } else {
    pack.v[0] = *from;
  }
  return pack;
}
template <int kWidth, typename Low>
__device__ __forceinline__ Pack<kWidth> load_pack(const Low* from) {
  static_assert(kWidth <= 4, "RawPack has eight");
  Pack<kWidth> pack;
  if constexpr (kWidth == 4) {
    const ushort4 four = *reinterpret_cast<const ushort4*>(from);
    pack.v[0] = to_float(Low{four.x}), pack.v[1] = to_float(Low{four.y});
    pack.v[2] = to_float(Low{four.z}), pack.v[3] = to_float(Low{four.w});
  } else {
    pack.v[0] = to_float(*from);
  }
  return pack;
}

// A loaded pack before conversion to float. With 16-bit elements it takes half the registers of a Pack.
template <typename T, int kWidth>
struct RawPack {
  static_assert(kWidth == kWidePack<T>);
  std::conditional_t<std::is_same_v<T, float>, float4, uint4> bits;

  __device__ __forceinline__ float operator[](int k) const {
    if constexpr (std::is_same_v<T, float>) {
      const float four[] = {bits.x, bits.y, bits.z, bits.w};
      return four[k];
    } else {
      const unsigned pairs[] = {bits.x, bits.y, bits.z, bits.w};
      return to_float(T{static_cast<std::uint16_t>(pairs[k / 2] >> 16 * (k % 2))});
    }
  }
};
template <typename T>
struct RawPack<T, 1> {
  T bits;

  __device__ __forceinline__ float operator[](int) const { return to_float(bits); }
};
template <int kWidth, typename T>
__device__ __forceinline__ RawPack<T, kWidth> load_raw(const T* from) {
  if constexpr (kWidth == 1)
    return {*from};
  else
    return {*reinterpret_cast<const decltype(RawPack<T, kWidth>::bits)*>(from)};
}

template <int kWidth>
__device__ __forceinline__ void store_pack(float* to, const Pack<kWidth>& pack) {
  if constexpr (kWidth == 4)
    *reinterpret_cast<float4*>(to) = make_float4(pack.v[0], pack.v[1], pack.v[2], pack.v[3]);
  else
    *to = pack.v[0];
}
template <int kWidth, typename Low>
__device__ __forceinline__ void store_pack(Low* to, const Pack<kWidth>& pack) {
  const auto bits = [&](int k) { return from_float<Low>(pack.v[k]).bits; };
  if constexpr (kWidth == 8) {
    const auto pair = [&](int k) { return static_cast<unsigned>(bits(k)) | static_cast<unsigned>(bits(k + 1)) << 16; };
    *reinterpret_cast<uint4*>(to) = make_uint4(pair(0), pair(2), pair(4), pair(6));
  } else if constexpr (kWidth == 4) {
    *reinterpret_cast<ushort4*>(to) = make_ushort4(bits(0), bits(1), bits(2), bits(3));
  } else {
    *to = Low{bits(0)};
  }
}

// Calls run.operator()<T>() with the C++ type of the elements.
template <typename Run>
auto in_type(DType type, const Run& run) {
  if (type == DType::bf16) return run.template operator()<BFloat16>();
  if (type == DType::f16) return run.template operator()<Float16>();
  return run.template operator()<float>();
}

// Calls run.operator()<kWidth, kChannelsLast>(). Packs require channels last.
template <typename Run>
void in_form(bool packs, bool channels_last, const Run& run) {
  if (packs) return run.template operator()<4, true>();
  return channels_last ? run.template operator()<1, true>() : run.template operator()<1, false>();
}

// True if all addresses are aligned to 16 bytes. Null is aligned.
template <typename... Pointers>
bool take_packs(Pointers... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

// Memory orders and element counts of tensors, for pooling, normalisation and similar ops.

// Returns the tensor with a resolved layout: `any` becomes the order of `model`.
inline TensorDesc in_order_of(const TensorDesc& model, const TensorDesc& tensor) {
  TensorDesc result = tensor;
  if (result.layout.any())
    result.layout =
        is_channels_last(model) ? channels_last(tensor.shape, tensor.type) : plain(tensor.shape, tensor.type);
  return result;
}

// True if both are channels last, false if both are row-major. Error(usage) if they differ.
inline bool both_channels_last(const TensorDesc& a, const TensorDesc& b) {
  if (is_channels_last(a) && is_channels_last(b)) return true;
  if (order_of(a).channels_last || order_of(b).channels_last)
    throw Error(ErrorCode::usage, "a pool requires one memory layout for input and output, not " + a.layout.name +
                                      " and " + b.layout.name);
  return false;
}

// Number of elements, for kernels with 32-bit indices that may run slightly past the end.
// Error(usage) above 2^32 - 2^20.
inline unsigned index_count(const TensorDesc& tensor) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 32) - (std::int64_t{1} << 20);
  const std::int64_t count = tensor.shape.numel();
  if (count > kMost)
    throw Error(ErrorCode::usage, "a tensor " + to_string(tensor.shape) + " has more elements than this op supports, " +
                                      std::to_string(kMost) + "; use smaller micro-batches");
  return static_cast<unsigned>(count);
}

}  // namespace dp::kernels::cuda
