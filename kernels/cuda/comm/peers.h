// Which devices can read each other's memory.
#pragma once

#include <string>
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

}  // namespace dp::kernels::cuda
