// Whether a device really reads another's memory: asked of a program of its own, which may be killed when the driver hangs, and
// remembered until the machine starts again.
#pragma once

#include <string>

#include "kernels/cuda/peers.h"

namespace dp::kernels::cuda {

// For two devices between which the driver offers peer access. The verdict is `direct`, `lying`, `hanging` or `unchecked`.
PeerPath probed_path(int reader, int owner);

// What the program dp_peer_probe does: writes a pattern into memory of `owner`, reads it from `reader` by a kernel and by a copy.
// True when both read what was written.
bool reads_pattern(int reader, int owner);

// Of dp_peer_probe.
inline constexpr int kReadsRight = 0, kReadsWrong = 10;
// The file with the verdicts of this boot: in $XDG_CACHE_HOME or ~/.cache, below dp; empty when there is no such folder.
std::string verdict_file();

}  // namespace dp::kernels::cuda
