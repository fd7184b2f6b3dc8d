// What the ranks of a communicator must agree in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "dp/shape.h"

namespace dp::kernels {

enum class Collective : std::uint8_t {
  broadcast,
  reduce,
  all_reduce,
  reduce_scatter,
  all_gather,
  all_gather_parts,
  gather,
  scatter
};

// What must be the same in all ranks.
struct CollectiveCall {
  Collective kind = Collective::broadcast;
  DType type = DType::u8;
  int root = 0;
  std::int64_t count = 0;        // elements; of gather and scatter bytes, of all ranks together
  std::uint64_t parts_hash = 0;  // of gather's and scatter's sizes
  int summands = 1;              // of each rank in a sum
  friend bool operator==(const CollectiveCall&, const CollectiveCall&) = default;
};
std::string to_string(const CollectiveCall& call);  // "reduce of 10 float32 elements to root 0"

// For parts_hash: FNV-1a, a size at a time.
inline constexpr std::uint64_t kEmptyPartsHash = 0xcbf29ce484222325u;
constexpr std::uint64_t hash_part(std::uint64_t hash, std::size_t bytes) { return (hash ^ bytes) * 0x100000001b3u; }

// Error(usage) naming both unless rank `other` makes the same call number `number` of communicator `name`.
void require_same_call(const std::string& name, std::uint64_t number, int rank, const CollectiveCall& mine, int other,
                       const CollectiveCall& theirs);

}  // namespace dp::kernels
