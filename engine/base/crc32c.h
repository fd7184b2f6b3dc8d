// CRC-32C (Castagnoli: reflected polynomial 0x82f63b78, initial value and final xor ~0), as in RFC 3720.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace dp {

// `before` is the checksum of the preceding bytes: crc32c(b, crc32c(a)) is the checksum of a followed by b.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before = 0);
// The same, without the SSE4.2 instruction.
std::uint32_t crc32c_portable(std::span<const std::byte> data, std::uint32_t before = 0);

}  // namespace dp
