// Recognises files that people give by mistake.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace dp {

// What a file that begins with these bytes is, with what to do: "a PyTorch file (torch.save): ...". Empty if it is none
// of those that are known. 16 bytes suffice.
std::string recognised(std::span<const std::uint8_t> begin);

}  // namespace dp
