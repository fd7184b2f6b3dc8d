// The phases of a training step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dp::engine {

enum class Phase : std::uint8_t { scatter, forward, loss, backward, reduce, update, broadcast };

constexpr std::array<const char*, 7> kPhaseNames{"scatter", "forward", "loss",     "backward",
                                                 "reduce",  "update",  "broadcast"};
constexpr const char* to_string(Phase phase) { return kPhaseNames[static_cast<std::size_t>(phase)]; }

}  // namespace dp::engine
