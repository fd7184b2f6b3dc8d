// Verifies that devices can read each other's memory. A separate program tries it and is killed if the driver hangs.
// Verdicts are cached until the next boot.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/comm/peers.h"

namespace dp::kernels::cuda {

using DevicePair = std::pair<int, int>;  // {reader, owner of the memory}

// One verdict per pair: `direct`, `lying`, `hanging` or `unchecked`. The driver must offer peer access for each pair.
// One program tries all pairs without a verdict. Concurrent processes take turns: the first one tries, later ones read
// its verdicts.
std::vector<PeerPath> probed_paths(const std::vector<DevicePair>& pairs);
int probe_programs_started();  // by this process so far

// The test that dp_peer_probe runs per pair: writes a pattern to memory of `owner` and reads it on `reader`, by a
// kernel and by a copy. True if both reads match.
bool reads_pattern(int reader, int owner);

// The output of dp_peer_probe, one line each: a started device, the pair to try next, its verdict (a PeerPath as a
// number).
inline constexpr char kProbeStarted[] = "started %d", kProbeTries[] = "tries %d %d",
                      kProbeVerdict[] = "verdict %d %d %d";
// The file with the verdicts since the last boot, in cache_folder(). Empty if the folder or the boot id is unknown.
std::string verdict_file();

}  // namespace dp::kernels::cuda
