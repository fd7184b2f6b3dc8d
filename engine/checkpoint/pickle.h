// Reads Python pickles without executing anything. The result describes the objects that Python would have created.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace dp {

using PickleId = std::uint32_t;  // an index of Pickle::objects

enum class PickleKind : std::uint8_t {
  none,
  boolean,
  integer,
  real,
  text,
  bytes,
  list,
  tuple,
  dict,
  set,
  global,
  call,
  persistent
};

struct PickleObject {
  static constexpr PickleId kNothing = ~PickleId{0};

  PickleKind kind = PickleKind::none;
  PickleId state = kNothing;  // what BUILD gave to the object
  std::int64_t integer = 0;   // boolean, integer
  std::string_view text{};    // text, bytes; integers beyond 64 bits; a global's "module.name"
  // list, tuple, set: the items. dict: keys and values in turn. persistent: its identifier. call: the callable, its
  // arguments (a tuple), and then the items or pairs that were added to the result.
  std::vector<PickleId> items{};
};

struct Pickle {
  std::deque<PickleObject> objects;
  PickleId root = 0;
  std::size_t bytes = 0;  // length of the pickle

  const PickleObject& operator[](PickleId id) const { return objects[id]; }
};

// The most bytes that a pickle may have.
inline constexpr std::size_t kLongestPickle = std::size_t{32} << 20;

// Returns "module.name" if a pickle may contain this global, in memory that outlives the Pickle. Returns an empty text
// otherwise.
using AllowedGlobal = std::string_view (*)(std::string_view module, std::string_view name);

// Reads the pickle at the beginning of `bytes`, protocol 2 to 5, with the opcodes that Python writes for data. The
// texts of the result are views of `bytes`. Takes at most 160 MiB, whatever the bytes are. Error(data) begins with
// `file`.
Pickle read_pickle(std::string_view bytes, AllowedGlobal allowed, const std::string& file);

}  // namespace dp
