// The wgmmas that one warp has issued and not yet waited for. Each warp of a warpgroup computes 16 of the 64 rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulated_cuda/emulator/site.h"

namespace dp::simt {

class Block;

// Shared address of the dynamic shared memory. It is not 1,024-byte aligned, so kernels must align it themselves.
inline constexpr std::size_t kSharedStart = 128;

// An operand with the 128-byte swizzle, see wgmma_descriptor() in kernels/device/cuda/native/ptx.h.
struct WgmmaOperand {
  std::uint64_t descriptor;
  bool k_major;
  unsigned lines;  // a multiple of 64

  unsigned rows() const { return k_major ? lines : lines / 64 * 16; }
  std::size_t row(unsigned i) const;                   // shared address; MN-major: 16 rows for every 64 lines
  std::size_t value(unsigned line, unsigned k) const;  // shared address of a 16-bit value
};

struct WgmmaOrder {
  std::array<float*, 32> d;                     // accumulators of each lane, four for every eight columns
  std::array<const unsigned*, 32> fragments_a;  // four registers of each lane; null if a is in shared memory
  WgmmaOperand a, b;                            // a: unused if it is in registers
  float (*value_of)(std::uint16_t);
  int smallest_exponent;  // see tensor_core.h
  unsigned warp;          // in the block
  bool late;              // computed at the wait, not at the issue
  Site site;
};

class WgmmaQueue {
 public:
  void clear();
  void fence() { fenced_ = true; }  // wgmma.fence
  void issue(const WgmmaOrder& order, Block& block);
  void commit();
  // Completes all groups except the last `pending` ones.
  void wait(std::size_t pending, Block& block);

 private:
  void check_warpgroup(const WgmmaOrder& order, Block& block);

  std::vector<WgmmaOrder> orders_;
  std::vector<std::size_t> groups_;                   // number of orders at each commit
  std::vector<std::array<std::uint64_t, 2>> issued_;  // operands of all orders of this block
  bool fenced_ = false;
};

}  // namespace dp::simt
