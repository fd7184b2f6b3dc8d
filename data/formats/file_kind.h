// Recognises files that people give by mistake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace dp {

inline constexpr std::size_t kRecognisedBytes = 16;

// Identifies a wrong file type by its first bytes, up to kRecognisedBytes: "a zip archive, such as torch.save writes".
// Empty for any other.
std::string recognised(std::span<const std::uint8_t> begin);

}  // namespace dp
