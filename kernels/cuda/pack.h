// One float, or four that a thread reads and writes at once.
#pragma once

#include <cstdint>

#include "device_code.h"

namespace dp::kernels::cuda {

template <int kWidth>
struct Pack {
  static_assert(kWidth == 1 || kWidth == 4);
  float v[kWidth];
};

// Of four: `from` is 16-byte aligned.
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

template <int kWidth>
__device__ __forceinline__ void store_pack(float* to, const Pack<kWidth>& pack) {
  if constexpr (kWidth == 4)
    *reinterpret_cast<float4*>(to) = make_float4(pack.v[0], pack.v[1], pack.v[2], pack.v[3]);
  else
    *to = pack.v[0];
}

// Calls run.operator()<kWidth, kChannelsLast>(): packs of four lie channels last.
template <typename Run>
void in_form(bool packs, bool channels_last, const Run& run) {
  if (packs) return run.template operator()<4, true>();
  return channels_last ? run.template operator()<1, true>() : run.template operator()<1, false>();
}

// Whether packs of four may begin at all of these addresses; null is one of them.
template <typename... Pointers>
bool take_packs(Pointers... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace dp::kernels::cuda
