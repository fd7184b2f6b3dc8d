// Whether devices really read each other's memory: tried by a program of its own, which may be killed when the driver hangs, and
// remembered until the machine starts again.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/comm/peers.h"

namespace dp::kernels::cuda {

using DevicePair = std::pair<int, int>;  // who reads, whose memory

// One verdict a pair: `direct`, `lying`, `hanging` or `unchecked`. The driver must offer peer access between them. One program tries all
// pairs without a verdict. Processes that start together take turns: the first one tries, the others read its verdicts.
std::vector<PeerPath> probed_paths(const std::vector<DevicePair>& pairs);
int probe_programs_started();  // by this process so far

// What the program dp_peer_probe does for each pair: writes a pattern into memory of `owner`, reads it from `reader` by a kernel and by a
// copy. True when both read what was written.
bool reads_pattern(int reader, int owner);

// What dp_peer_probe prints, a line each: a device that was started, a pair that is tried next, its verdict (a PeerPath's number).
inline constexpr char kProbeStarted[] = "started %d", kProbeTries[] = "tries %d %d",
                      kProbeVerdict[] = "verdict %d %d %d";
// The file with the verdicts of this boot: in $XDG_CACHE_HOME or ~/.cache, below dp; empty when there is no such folder.
std::string verdict_file();

}  // namespace dp::kernels::cuda
