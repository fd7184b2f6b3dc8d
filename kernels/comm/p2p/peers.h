// Which devices can read each other's memory, and the probe that tests it.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dp::kernels::cuda {

enum class PeerPath {
  same,      // the same device
  direct,    // peer access, verified by a probe
  absent,    // the driver offers no peer access
  lying,     // offered, but the probe read wrong data
  hanging,   // offered, but the probe hung and was killed
  unchecked  // offered, but the probe could not run or failed
};
const char* to_string(PeerPath path);
inline bool reads(PeerPath path) { return path == PeerPath::same || path == PeerPath::direct; }

// paths[r][k]: how devices[r] reads memory of devices[k]. Enables peer access for `direct` pairs, once per process:
// enabling a pair twice is an error, which memory checkers report.
std::vector<std::vector<PeerPath>> connect(const std::vector<int>& devices);
// For tests that replace the machine: clears the record of enabled pairs.
void forget_enabled_peers();
// As connect(), but enables nothing.
std::vector<std::vector<PeerPath>> peer_paths(const std::vector<int>& devices);

// "cuda:0 and cuda:1 through the host (no peer access)"; empty if all pairs can read each other.
std::string describe_detours(const std::vector<int>& devices, const std::vector<std::vector<PeerPath>>& paths);

// Verifies that devices can read each other's memory. A separate program tries it and is killed if the driver hangs.
// Verdicts are cached until the next boot.

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
