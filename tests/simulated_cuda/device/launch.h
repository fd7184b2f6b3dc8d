// Launches a kernel on a simulated stream.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/device/cuda/runtime.h"
#include "simulated_cuda/api/kernel_call.h"

namespace dp::simt {

template <class... P>
struct KernelArguments {
  void (*kernel)(P...);
  std::tuple<P...> values;

  static void run(const void* self) {
    static_cast<const KernelArguments*>(self)->spread(std::index_sequence_for<P...>{});
  }
  template <std::size_t... I>
  void spread(std::index_sequence<I...>) const {
    kernel(std::get<I>(values)...);
  }
};

// Derives the access from the parameter's type: the kernel only reads through a `const T*`.
template <class T>
void add_pointers(KernelCall& call, T* pointer) {
  if constexpr (std::is_void_v<T>) {
    call.add_pointer({pointer, 1, !std::is_const_v<T>});
  } else if constexpr (!std::is_function_v<T>) {
    call.add_pointer({pointer, std::min<std::size_t>(sizeof(T), 8), !std::is_const_v<T>});
  }
}
// Padding is indeterminate. It may hold the upper half of an old pointer, which, with a small number before it, looks
// like a pointer into device memory. An empty struct shares its byte with another argument, so it is not cleared.
template <class T>
void clear_padding([[maybe_unused]] T& value) {
#if __has_builtin(__builtin_clear_padding)
  if constexpr (std::is_class_v<T> && !std::is_empty_v<T>) __builtin_clear_padding(&value);
#endif
}
// Every word of a struct that points into device memory counts as read. The struct must have no padding, or its padding
// must be cleared.
template <class T>
requires std::is_class_v<T>
void add_pointers([[maybe_unused]] KernelCall& call, [[maybe_unused]] const T& value) {
#if !__has_builtin(__builtin_clear_padding)
  if constexpr (std::has_unique_object_representations_v<T>)
#endif
    for (std::size_t at = 0; at + sizeof(void*) <= sizeof(T); at += alignof(void*)) {
      const void* word;
      std::memcpy(&word, reinterpret_cast<const char*>(&value) + at, sizeof word);
      if (is_device_address(word)) call.add_pointer({word, 1, false});
    }
}
template <class T>
requires std::is_arithmetic_v<T> || std::is_enum_v<T>
void add_pointers(KernelCall&, T) {}

}  // namespace dp::simt

namespace dp::kernels::cuda {

// Like cudaLaunchKernel: copies the arguments and returns. The kernel runs in stream order.
template <class... P, class... A>
cudaError_t launch_kernel(const Launch& launch, void (*kernel)(P...), A&&... arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "as many arguments as the kernel has parameters");
  static_assert((std::is_trivially_copyable_v<P> && ...), "a kernel's parameters are copied byte by byte");
  using Arguments = simt::KernelArguments<std::remove_cv_t<P>...>;
  static_assert(sizeof(Arguments) <= simt::kArgumentBytes);
  Arguments copied{kernel, {static_cast<P>(std::forward<A>(arguments))...}};
  std::apply([](auto&... value) { (simt::clear_padding(value), ...); }, copied.values);
  simt::KernelCall call{.grid = {.kernel = launch.kernel,
                                 .device = 0,
                                 .grid = launch.grid,
                                 .block = launch.block,
                                 .shared_bytes = launch.shared_bytes,
                                 .shared_limit = 0,
                                 .call = &Arguments::run},
                        .stream = launch.stream,
                        .function = reinterpret_cast<const void*>(kernel),
                        .arguments = &copied,
                        .argument_bytes = sizeof copied};
  std::apply([&](const P&... value) { (simt::add_pointers(call, value), ...); }, copied.values);
  return simt::enqueue(call);
}

template <class... P, class... A>
void launch(const Launch& where, void (*kernel)(P...), A&&... arguments) {
  const void* const function = reinterpret_cast<const void*>(kernel);
  allow_shared(function, where);
  if (KernelLoading::active()) return load_kernel(function, where);
  check_launched(launch_kernel(where, kernel, std::forward<A>(arguments)...), where);
}

}  // namespace dp::kernels::cuda
