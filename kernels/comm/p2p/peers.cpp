#include "kernels/comm/p2p/peers.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "kernels/device/cuda/check.h"
#include "kernels/device/cuda/stream.h"

namespace dp::kernels::cuda {
namespace {

bool offered(int reader, int owner) {
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, reader, owner), "querying peer access");
  return can != 0;
}

struct EnabledPeers {
  std::mutex mutex;
  std::set<DevicePair> pairs;
};
EnabledPeers& enabled_peers() {
  static EnabledPeers enabled;
  return enabled;
}

// Another library in the process may already have enabled the pair.
void enable(int reader, int owner) {
  const std::scoped_lock lock(enabled_peers().mutex);
  if (enabled_peers().pairs.contains({reader, owner})) return;
  bind_device(reader);
  const cudaError_t error = cudaDeviceEnablePeerAccess(owner, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();
  else
    check(error, "enabling peer access");
  enabled_peers().pairs.insert({reader, owner});
}

}  // namespace

const char* to_string(PeerPath path) {
  switch (path) {
    case PeerPath::same: return "same device";
    case PeerPath::direct: return "direct";
    case PeerPath::absent: return "no peer access";
    case PeerPath::lying: return "peer access that returns wrong data";
    case PeerPath::hanging: return "peer access that hangs";
    case PeerPath::unchecked: return "peer access that could not be checked";
  }
  return "unknown";
}

void forget_enabled_peers() {
  const std::scoped_lock lock(enabled_peers().mutex);
  enabled_peers().pairs.clear();
}

std::vector<std::vector<PeerPath>> peer_paths(const std::vector<int>& devices) {
  std::vector<std::vector<PeerPath>> paths(devices.size(), std::vector<PeerPath>(devices.size(), PeerPath::same));
  std::vector<DevicePair> pairs;
  std::vector<PeerPath*> places;
  for (std::size_t reader = 0; reader < devices.size(); ++reader)
    for (std::size_t owner = 0; owner < devices.size(); ++owner) {
      if (devices[reader] == devices[owner]) continue;
      paths[reader][owner] = PeerPath::absent;
      if (!offered(devices[reader], devices[owner])) continue;
      pairs.emplace_back(devices[reader], devices[owner]);
      places.push_back(&paths[reader][owner]);
    }
  const std::vector<PeerPath> probed = probed_paths(pairs);
  for (std::size_t i = 0; i < places.size(); ++i) *places[i] = probed[i];
  return paths;
}

std::vector<std::vector<PeerPath>> connect(const std::vector<int>& devices) {
  std::vector<std::vector<PeerPath>> paths = peer_paths(devices);
  for (std::size_t reader = 0; reader < devices.size(); ++reader)
    for (std::size_t owner = 0; owner < devices.size(); ++owner)
      if (paths[reader][owner] == PeerPath::direct) enable(devices[reader], devices[owner]);
  return paths;
}

std::string describe_detours(const std::vector<int>& devices, const std::vector<std::vector<PeerPath>>& paths) {
  std::string text;
  std::vector<std::pair<int, int>> described;
  for (std::size_t reader = 0; reader < devices.size(); ++reader)
    for (std::size_t owner = 0; owner < devices.size(); ++owner) {
      if (reads(paths[reader][owner])) continue;
      const std::pair<int, int> pair = std::minmax(devices[reader], devices[owner]);
      if (std::find(described.begin(), described.end(), pair) != described.end()) continue;
      described.push_back(pair);
      text += (text.empty() ? "" : ", ") + ("cuda:" + std::to_string(pair.first)) +
              " and cuda:" + std::to_string(pair.second) + " through the host (" + to_string(paths[reader][owner]) +
              ")";
    }
  return text;
}

}  // namespace dp::kernels::cuda
