// wgmma, emulated for one warp at a time.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/low_float.h"
#include "simulated_cuda/emulator/block.h"
#include "simulated_cuda/emulator/wgmma_queue.h"

namespace dp::kernels::cuda::ptx {

inline constexpr bool kHasWgmma = true;

DP_SIMT_UNSEEN inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(simt::running_block->shared().offset(pointer) + simt::kSharedStart);
}

inline std::uint64_t wgmma_descriptor(const void* first, unsigned next_lines = 1024) {
  return std::uint64_t{1} << 62 | std::uint64_t{1024 / 16} << 32 | std::uint64_t{next_lines / 16} << 16 |
         (shared_address(first) & 0x3ffffu) / 16;
}

DP_SIMT_UNSEEN inline void fence_async_proxy() { simt::running_block->fence_copies(); }

struct WgmmaCall {
  float* d;
  const unsigned* fragments_a;  // null if a is in shared memory
  std::uint64_t a, b;
};

template <class Low>
DP_SIMT_UNSEEN float value_of(std::uint16_t bits) {
  return to_float(Low{bits});
}

template <class Low, bool k_major_a, bool k_major_b, unsigned columns>
DP_SIMT_UNSEEN void combine_wgmma(void* const* lanes, unsigned mask, simt::Block& block, simt::Site site) {
  if (mask != simt::kFullWarp) block.fail("wgmma at %s:%d needs a whole warp", site.name(), site.line);
  const auto call = [&](int lane) { return *static_cast<const WgmmaCall*>(lanes[lane]); };
  simt::WgmmaOrder order{{},
                         {},
                         {call(0).a, k_major_a, 64},
                         {call(0).b, k_major_b, columns},
                         &value_of<Low>,
                         std::is_same_v<Low, Float16> ? -14 : -126,
                         block.thread() / simt::kWarp,
                         block.copies_late(),
                         site};
  for (int lane = 0; lane < 32; ++lane) {
    order.d[lane] = call(lane).d;
    order.fragments_a[lane] = call(lane).fragments_a;
    if (call(lane).a != call(0).a || call(lane).b != call(0).b)
      block.fail("lanes pass different operands to wgmma at %s:%d", site.name(), site.line);
  }
  block.check_fenced(site);
  block.wgmma_queue().issue(order, block);
}
template <class Low, bool k_major_a, bool k_major_b>
DP_SIMT_UNSEEN void wgmma_m64n64k16(float (&d)[32], std::uint64_t a, std::uint64_t b, DP_SIMT_CALLER) {
  WgmmaCall call{d, nullptr, a, b};
  simt::running_block->collective(simt::kFullWarp, &call, &combine_wgmma<Low, k_major_a, k_major_b, 64>, DP_SIMT_SITE);
}
// A late wgmma reads `a` at the wait.
template <class Low, bool k_major_b, int eights>
DP_SIMT_UNSEEN void wgmma_m64k16(float (&d)[eights][4], const unsigned (&a)[4], std::uint64_t b, DP_SIMT_CALLER) {
  static_assert(eights == 8 || eights == 16);
  WgmmaCall call{d[0], a, 0, b};
  simt::running_block->collective(simt::kFullWarp, &call, &combine_wgmma<Low, true, k_major_b, 8 * eights>,
                                  DP_SIMT_SITE);
}

DP_SIMT_UNSEEN inline void combine_fence(void* const*, unsigned, simt::Block& block, simt::Site) {
  block.wgmma_queue().fence();
}
DP_SIMT_UNSEEN inline void wgmma_fence(DP_SIMT_CALLER) {
  simt::running_block->collective(simt::kFullWarp, nullptr, &combine_fence, DP_SIMT_SITE);
}
DP_SIMT_UNSEEN inline void combine_commit(void* const*, unsigned, simt::Block& block, simt::Site) {
  block.wgmma_queue().commit();
}
DP_SIMT_UNSEEN inline void wgmma_commit(DP_SIMT_CALLER) {
  simt::running_block->collective(simt::kFullWarp, nullptr, &combine_commit, DP_SIMT_SITE);
}
template <int pending>
DP_SIMT_UNSEEN void combine_wait(void* const*, unsigned, simt::Block& block, simt::Site) {
  block.wgmma_queue().wait(pending, block);
}
template <int pending>
DP_SIMT_UNSEEN void wgmma_wait(DP_SIMT_CALLER) {
  simt::running_block->collective(simt::kFullWarp, nullptr, &combine_wait<pending>, DP_SIMT_SITE);
}
template <int count>
void fence_accumulators(float (&)[count]) {}

}  // namespace dp::kernels::cuda::ptx
