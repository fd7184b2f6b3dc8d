// Compares the signature of a library's function with its declaration in kernels/, with the types mapped by Ours, and
// enumerators.
#pragma once

#include <type_traits>

namespace dp::test {

// Maps a library's type to ours. Specialised for each type with another name here.
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

// Whether two enumerators have the same number.
template <typename Theirs, typename Mine>
constexpr bool equal(Theirs theirs, Mine mine) {
  return static_cast<int>(theirs) == static_cast<int>(mine);
}

}  // namespace dp::test
