// wgmma: the products of warpgroups, warp by warp.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/low_float.h"
#include "simulated_cuda/emulator/block.h"
#include "simulated_cuda/emulator/warpgroup_products.h"

namespace dp::kernels::cuda::ptx {

inline constexpr bool kWarpgroupProducts = true;

DP_SIMT_UNSEEN inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(simt::running_block->shared().offset(pointer) + simt::kSharedStart);
}

inline std::uint64_t warpgroup_operand(const void* first) {
  return std::uint64_t{1} << 62 | std::uint64_t{1024 / 16} << 32 | (shared_address(first) & 0x3ffffu) / 16;
}

DP_SIMT_UNSEEN inline void publish_to_products() { simt::running_block->publish_copies(); }

struct WarpgroupCall {
  float* sums;
  std::uint64_t a, b;
};

template <class Low>
DP_SIMT_UNSEEN float value_of(std::uint16_t bits) {
  return to_float(Low{bits});
}

template <class Low, bool along_a, bool along_b>
DP_SIMT_UNSEEN void combine_products(void* const* lanes, unsigned mask, simt::Block& block, simt::Site site) {
  if (mask != simt::kFullWarp) block.fail("wgmma at %s:%d needs a whole warp", site.name(), site.line);
  const auto call = [&](int lane) { return *static_cast<const WarpgroupCall*>(lanes[lane]); };
  simt::WarpgroupOrder order{{},
                             {call(0).a, along_a},
                             {call(0).b, along_b},
                             &value_of<Low>,
                             std::is_same_v<Low, Float16> ? -14 : -126,
                             block.thread() / simt::kWarp,
                             block.copies_late(),
                             site};
  for (int lane = 0; lane < 32; ++lane) {
    order.sums[lane] = call(lane).sums;
    if (call(lane).a != call(0).a || call(lane).b != call(0).b)
      block.fail("lanes pass different operands to wgmma at %s:%d", site.name(), site.line);
  }
  block.check_published(site);
  block.warpgroup_products().issue(order, block);
}
template <class Low, bool along_a, bool along_b>
DP_SIMT_UNSEEN void multiply(float (&d)[32], std::uint64_t a, std::uint64_t b, DP_SIMT_CALLER) {
  WarpgroupCall call{d, a, b};
  simt::running_block->collective(simt::kFullWarp, &call, &combine_products<Low, along_a, along_b>, DP_SIMT_SITE);
}

DP_SIMT_UNSEEN inline void combine_begin(void* const*, unsigned, simt::Block& block, simt::Site) {
  block.warpgroup_products().begin();
}
DP_SIMT_UNSEEN inline void begin_products(DP_SIMT_CALLER) {
  simt::running_block->collective(simt::kFullWarp, nullptr, &combine_begin, DP_SIMT_SITE);
}
DP_SIMT_UNSEEN inline void combine_commit(void* const*, unsigned, simt::Block& block, simt::Site) {
  block.warpgroup_products().commit();
}
DP_SIMT_UNSEEN inline void commit_products(DP_SIMT_CALLER) {
  simt::running_block->collective(simt::kFullWarp, nullptr, &combine_commit, DP_SIMT_SITE);
}
template <int pending>
DP_SIMT_UNSEEN void combine_wait(void* const*, unsigned, simt::Block& block, simt::Site) {
  block.warpgroup_products().wait(pending, block);
}
template <int pending>
DP_SIMT_UNSEEN void wait_for_products(DP_SIMT_CALLER) {
  simt::running_block->collective(simt::kFullWarp, nullptr, &combine_wait<pending>, DP_SIMT_SITE);
}
template <int count>
void settle(float (&)[count]) {}

}  // namespace dp::kernels::cuda::ptx
