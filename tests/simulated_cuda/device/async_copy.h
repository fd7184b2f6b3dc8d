// cp.async: asynchronous copies from global to shared memory.
#pragma once

#include <cstdint>

#include "simulated_cuda/emulator/block.h"

namespace dp::kernels::cuda::ptx {

template <unsigned bytes>
DP_SIMT_UNSEEN void issue_copy(void* to, const void* from, bool pred, simt::Site site) {
  simt::Block& block = *simt::running_block;
  const auto unaligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % bytes != 0; };
  if (unaligned(to) || (pred && unaligned(from)))
    block.fail("the addresses of cp.async at %s:%d are no multiples of %u", site.name(), site.line, bytes);
  if (!block.shared().inside_array(to, bytes))
    block.fail("cp.async at %s:%d writes outside the shared arrays", site.name(), site.line);
  block.async_copies().issue({to, from, bytes, !pred, block.copies_late()}, block.thread());
}

// If pred is false, stores zeros and does not read `from`.
inline void cp_async16(void* to, const void* from, bool pred = true, DP_SIMT_CALLER) {
  issue_copy<16>(to, from, pred, DP_SIMT_SITE);
}
inline void cp_async8(void* to, const void* from, bool pred = true, DP_SIMT_CALLER) {
  issue_copy<8>(to, from, pred, DP_SIMT_SITE);
}
inline void cp_async4(void* to, const void* from, bool pred = true, DP_SIMT_CALLER) {
  issue_copy<4>(to, from, pred, DP_SIMT_SITE);
}
DP_SIMT_UNSEEN inline void cp_async_commit() { simt::running_block->async_copies().commit(); }
// Waits until at most N committed groups are in flight. Other threads see the copies after a barrier.
template <int N>
DP_SIMT_UNSEEN void cp_async_wait() {
  simt::running_block->async_copies().wait(N, simt::running_block->thread());
}

// No effect, but the read checks the address: prefetching an invalid address is an error on a device, too.
DP_SIMT_UNSEEN inline void prefetch_l2(const void* line) {
  [[maybe_unused]] const volatile char byte = *static_cast<const volatile char*>(line);
}

}  // namespace dp::kernels::cuda::ptx
