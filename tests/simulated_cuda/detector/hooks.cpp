// The functions that the compiler calls before every access in code compiled with -fsanitize=thread. They replace the
// thread sanitizer's runtime, which is not linked.
#include <cstdint>

#include "simulated_cuda/detector/race_detector.h"

namespace {

dp::simt::RaceDetector& race_detector() {
  static auto& made = *new dp::simt::RaceDetector;
  return made;
}

void touch(const void* address, unsigned bytes, dp::simt::Access kind, const void* code) {
  dp::simt::Block* const block = dp::simt::running_block;
  if (block != nullptr && block->on_fiber()) race_detector().access(address, bytes, kind, block->thread(), code);
}

}  // namespace

#define DP_CALLER __builtin_return_address(0)
#define DP_HOOK(name, bytes, kind) \
  void name(void* address) { touch(address, bytes, dp::simt::Access::kind, DP_CALLER); }
#define DP_HOOKS(bytes)                                       \
  DP_HOOK(__tsan_read##bytes, bytes, read)                    \
  DP_HOOK(__tsan_write##bytes, bytes, write)                  \
  DP_HOOK(__tsan_unaligned_read##bytes, bytes, read)          \
  DP_HOOK(__tsan_unaligned_write##bytes, bytes, write)        \
  DP_HOOK(__tsan_volatile_read##bytes, bytes, read)           \
  DP_HOOK(__tsan_volatile_write##bytes, bytes, write)         \
  DP_HOOK(__tsan_unaligned_volatile_read##bytes, bytes, read) \
  DP_HOOK(__tsan_unaligned_volatile_write##bytes, bytes, write)
// A read and a write of the same address.
#define DP_BOTH_HOOK(name, bytes)                              \
  void name(void* address) {                                   \
    touch(address, bytes, dp::simt::Access::read, DP_CALLER);  \
    touch(address, bytes, dp::simt::Access::write, DP_CALLER); \
  }
// Atomics of the C++ library in host code: executed as they are.
#define DP_ATOMICS(bits, type)                                                                                    \
  type __tsan_atomic##bits##_load(const volatile type* at, int) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); } \
  void __tsan_atomic##bits##_store(volatile type* at, type v, int) { __atomic_store_n(at, v, __ATOMIC_SEQ_CST); } \
  type __tsan_atomic##bits##_exchange(volatile type* at, type v, int) {                                           \
    return __atomic_exchange_n(at, v, __ATOMIC_SEQ_CST);                                                          \
  }                                                                                                               \
  type __tsan_atomic##bits##_fetch_add(volatile type* at, type v, int) {                                          \
    return __atomic_fetch_add(at, v, __ATOMIC_SEQ_CST);                                                           \
  }                                                                                                               \
  type __tsan_atomic##bits##_fetch_sub(volatile type* at, type v, int) {                                          \
    return __atomic_fetch_sub(at, v, __ATOMIC_SEQ_CST);                                                           \
  }                                                                                                               \
  type __tsan_atomic##bits##_fetch_and(volatile type* at, type v, int) {                                          \
    return __atomic_fetch_and(at, v, __ATOMIC_SEQ_CST);                                                           \
  }                                                                                                               \
  type __tsan_atomic##bits##_fetch_or(volatile type* at, type v, int) {                                           \
    return __atomic_fetch_or(at, v, __ATOMIC_SEQ_CST);                                                            \
  }                                                                                                               \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile type* at, type* old, type v, int, int) {             \
    return __atomic_compare_exchange_n(at, old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                    \
  }                                                                                                               \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile type* at, type* old, type v, int, int) {               \
    return __atomic_compare_exchange_n(at, old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                    \
  }

extern "C" {

// Called before main, once for each file compiled with the sanitizer.
void __tsan_init() { dp::simt::detector = &race_detector(); }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}

DP_HOOKS(1)
DP_HOOKS(2)
DP_HOOKS(4)
DP_HOOKS(8)
DP_HOOKS(16)
DP_BOTH_HOOK(__tsan_read_write1, 1)
DP_BOTH_HOOK(__tsan_read_write2, 2)
DP_BOTH_HOOK(__tsan_read_write4, 4)
DP_BOTH_HOOK(__tsan_read_write8, 8)
DP_BOTH_HOOK(__tsan_read_write16, 16)
void __tsan_read_range(void* address, unsigned long bytes) {
  touch(address, static_cast<unsigned>(bytes), dp::simt::Access::read, DP_CALLER);
}
void __tsan_write_range(void* address, unsigned long bytes) {
  touch(address, static_cast<unsigned>(bytes), dp::simt::Access::write, DP_CALLER);
}

DP_ATOMICS(8, std::uint8_t)
DP_ATOMICS(32, std::uint32_t)
DP_ATOMICS(64, std::uint64_t)

}  // extern "C"
