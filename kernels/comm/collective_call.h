// The description of a collective call. Ranks compare it to detect mismatched calls.
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

// All members must be equal on all ranks.
struct CollectiveCall {
  Collective kind = Collective::broadcast;
  DType type = DType::u8;
  int root = 0;
  std::int64_t count = 0;        // elements; for calls in parts: bytes of all ranks together
  std::uint64_t parts_hash = 0;  // of the part sizes of gather and scatter
  int summands = 1;              // per rank, in reductions
  friend bool operator==(const CollectiveCall&, const CollectiveCall&) = default;
};
std::string to_string(const CollectiveCall& call);  // "reduce of 10 float32 elements to root 0"

// For parts_hash: FNV-1a, one step per size.
inline constexpr std::uint64_t kEmptyPartsHash = 0xcbf29ce484222325u;
constexpr std::uint64_t hash_part(std::uint64_t hash, std::size_t bytes) { return (hash ^ bytes) * 0x100000001b3u; }

// Error(usage) with both calls unless `mine` equals `theirs`. `name` is the communicator, `number` the call number.
void require_same_call(const std::string& name, std::uint64_t number, int rank, const CollectiveCall& mine, int other,
                       const CollectiveCall& theirs);

}  // namespace dp::kernels
