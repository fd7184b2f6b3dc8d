#include "engine/base/crc32c.h"

#include <array>
#include <cstring>

namespace dp {
namespace {

// tables[k][b]: the remainder of byte b followed by k zero bytes.
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0u);
    tables[0][b] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t b = 0; b < 256; ++b) tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 255];
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint64_t load_u64(const std::byte* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(std::span<const std::byte> data, std::uint32_t before) {
  std::uint64_t crc = ~before;
  std::size_t at = 0;
  for (; at + 8 <= data.size(); at += 8) crc = __builtin_ia32_crc32di(crc, load_u64(data.data() + at));
  auto low = static_cast<std::uint32_t>(crc);
  for (; at < data.size(); ++at) low = __builtin_ia32_crc32qi(low, static_cast<unsigned char>(data[at]));
  return ~low;
}
#endif

}  // namespace

std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t before) {
  std::uint32_t crc = ~before;
  std::size_t at = 0;
  for (; at + 8 <= data.size(); at += 8) {
    const std::uint64_t word = load_u64(data.data() + at) ^ crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 255];
  }
  for (; at < data.size(); ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<std::uint32_t>(data[at])) & 255];
  return ~crc;
}

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before) {
#if defined(__x86_64__)
  static const bool fast = __builtin_cpu_supports("sse4.2");
  if (fast) return crc32c_sse42(data, before);
#endif
  return crc32c_portable(data, before);
}

}  // namespace dp
