// Which device can read which one's memory.
#pragma once

#include <string>
#include <vector>

namespace dp::kernels::cuda {

enum class PeerPath {
  same,      // the same device
  direct,    // peer access, checked by a probe and enabled
  absent,    // the driver offers none
  lying,     // offered, but the probe read back other data than it wrote
  hanging,   // offered, but the probe did not end and was killed
  unchecked  // offered, but the probe could not be run
};
const char* to_string(PeerPath path);
inline bool reads(PeerPath path) { return path == PeerPath::same || path == PeerPath::direct; }

// paths[r][k]: how devices[r] reaches devices[k]'s memory. Enables peer access where the answer is `direct`, once in a process: to enable a
// pair again is an error, which memory checkers count.
std::vector<std::vector<PeerPath>> connect(const std::vector<int>& devices);
// For tests that change the machine: no peer access is enabled any more.
void forget_enabled_peers();
// The same as connect() without enabling anything.
std::vector<std::vector<PeerPath>> peer_paths(const std::vector<int>& devices);

// "cuda:0 and cuda:1 through the host (no peer access)"; empty when all read each other.
std::string describe_detours(const std::vector<int>& devices, const std::vector<std::vector<PeerPath>>& paths);

}  // namespace dp::kernels::cuda
