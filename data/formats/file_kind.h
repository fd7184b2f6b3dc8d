// Recognises files that people give by mistake.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace dp {

// Identifies a wrong file type by its first 16 bytes: "a zip archive, such as torch.save writes". Empty for any other.
std::string recognised(std::span<const std::uint8_t> begin);

}  // namespace dp
