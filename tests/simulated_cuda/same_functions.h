// Whether a function of a library's header is what kernels/cuda declares of it: a pointer to one with types of our own.
#pragma once

#include <type_traits>

namespace dp::test {

// A library's type as ours; specialised for each that has another name here.
template <typename T>
struct Ours {
  using type = T;
};
template <typename T>
struct Ours<T*> {
  using type = typename Ours<T>::type*;
};
template <typename T>
struct Ours<const T> {
  using type = const typename Ours<T>::type;
};
template <typename Result, typename... Arguments>
struct Ours<Result(Arguments...)> {
  using type = typename Ours<Result>::type(typename Ours<Arguments>::type...);
};

template <auto& Theirs, typename Mine>
constexpr bool same = std::is_same_v<typename Ours<std::remove_reference_t<decltype(Theirs)>>::type*, Mine>;

}  // namespace dp::test
