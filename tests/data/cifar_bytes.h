// CIFAR binary files in memory.
#pragma once

#include <cstdint>
#include <vector>

#include "data/datasets/cifar.h"

namespace dp::test {

inline constexpr std::int64_t kTenClasses[] = {10}, kHundredClasses[] = {20, 100};

// Record r: the last label byte is `first` + r modulo the number of classes. With two label bytes the first one, the
// coarse label, is r % 20. Image byte k is (r + k) % 251.
inline std::vector<std::uint8_t> cifar_records(int records, int label_bytes, int first = 0) {
  std::vector<std::uint8_t> bytes;
  for (int r = 0; r < records; ++r) {
    if (label_bytes == 2) bytes.push_back(static_cast<std::uint8_t>(r % 20));
    bytes.push_back(static_cast<std::uint8_t>((first + r) % (label_bytes == 2 ? 100 : 10)));
    for (int k = 0; k < 3072; ++k) bytes.push_back(static_cast<std::uint8_t>((r + k) % 251));
  }
  return bytes;
}

}  // namespace dp::test
