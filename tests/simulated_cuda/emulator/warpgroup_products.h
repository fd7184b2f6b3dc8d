// The products of warpgroups (wgmma) that one warp has issued and not yet waited for. Each warp computes its own 16 of
// the 64 lines.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulated_cuda/emulator/site.h"

namespace dp::simt {

class Block;

// The shared address of the dynamic shared memory, as if something lay before it: it is not 1,024-byte aligned.
inline constexpr std::size_t kSharedStart = 128;

// An operand in rows of 128 bytes, with chunks of 16 bytes in exchanged places, as wgmma's descriptor describes it.
struct WarpgroupOperand {
  std::uint64_t descriptor;
  bool along;  // a row for each line, not for each k

  unsigned rows() const { return along ? 64 : 16; }
  std::size_t row(unsigned i) const;                   // shared address
  std::size_t value(unsigned line, unsigned k) const;  // shared address of a 16-bit value
};

struct WarpgroupOrder {
  std::array<float*, 32> sums;  // of the lanes, 32 each
  WarpgroupOperand a, b;
  float (*value_of)(std::uint16_t);
  int smallest_exponent;  // see tensor_core.h
  unsigned warp;          // in the block
  bool late;              // computes at the wait, not at the issue
  Site site;
};

class WarpgroupProducts {
 public:
  void clear();
  void begin() { begun_ = true; }
  void issue(const WarpgroupOrder& order, Block& block);
  void commit();
  // Completes all groups except the last `pending` ones.
  void wait(std::size_t pending, Block& block);

 private:
  std::vector<WarpgroupOrder> orders_;
  std::vector<std::size_t> groups_;  // number of orders at each commit
  bool begun_ = false;
};

}  // namespace dp::simt
