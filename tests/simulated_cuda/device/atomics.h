// Atomic updates of global and shared memory. Relaxed, like CUDA's.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "simulated_cuda/emulator/block.h"
#include "simulated_cuda/emulator/detector.h"

namespace dp::simt {

template <std::size_t bytes>
struct WordOf;
template <>
struct WordOf<4> {
  using type = unsigned;
};
template <>
struct WordOf<8> {
  using type = unsigned long long;
};

// Returns the old value. `update` computes the new value from it.
template <class T, class Update>
DP_SIMT_UNSEEN T atomic_update(T* place, Update update) {
  using Word = typename WordOf<sizeof(T)>::type;
  if (detector != nullptr)
    detector->access(place, sizeof(T), Access::atomic, running_block->thread(), __builtin_return_address(0));
  Word* const word = reinterpret_cast<Word*>(place);
  Word old_word = __atomic_load_n(word, __ATOMIC_RELAXED), new_word;
  T old_value;
  do {
    std::memcpy(&old_value, &old_word, sizeof(T));
    const T new_value = update(old_value);
    std::memcpy(&new_word, &new_value, sizeof(T));
  } while (!__atomic_compare_exchange_n(word, &old_word, new_word, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  if (!running_block->shared().holds(place)) running_block->yield();
  return old_value;
}

}  // namespace dp::simt

template <class T>
T atomicAdd(T* place, std::type_identity_t<T> value) {
  return dp::simt::atomic_update(place, [=](T old) DP_SIMT_UNSEEN { return static_cast<T>(old + value); });
}
template <class T>
T atomicSub(T* place, std::type_identity_t<T> value) {
  return dp::simt::atomic_update(place, [=](T old) DP_SIMT_UNSEEN { return static_cast<T>(old - value); });
}
template <class T>
T atomicMax(T* place, std::type_identity_t<T> value) {
  return dp::simt::atomic_update(place, [=](T old) DP_SIMT_UNSEEN { return old < value ? value : old; });
}
template <class T>
T atomicMin(T* place, std::type_identity_t<T> value) {
  return dp::simt::atomic_update(place, [=](T old) DP_SIMT_UNSEEN { return value < old ? value : old; });
}
template <class T>
T atomicAnd(T* place, std::type_identity_t<T> value) {
  return dp::simt::atomic_update(place, [=](T old) DP_SIMT_UNSEEN { return old & value; });
}
template <class T>
T atomicOr(T* place, std::type_identity_t<T> value) {
  return dp::simt::atomic_update(place, [=](T old) DP_SIMT_UNSEEN { return old | value; });
}
// Counts to `limit`, then wraps to 0.
inline unsigned atomicInc(unsigned* place, unsigned limit) {
  return dp::simt::atomic_update(place, [=](unsigned old) DP_SIMT_UNSEEN { return old >= limit ? 0u : old + 1; });
}
template <class T>
T atomicExch(T* place, std::type_identity_t<T> value) {
  return dp::simt::atomic_update(place, [=](T) DP_SIMT_UNSEEN { return value; });
}
template <class T>
T atomicCAS(T* place, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return dp::simt::atomic_update(place, [=](T old) DP_SIMT_UNSEEN { return old == expected ? value : old; });
}
