// dp_peer_probe <reader>:<owner> ...: tries the pairs of devices in this order and prints its progress (peers.h).
// The parent kills it when a line takes too long. Exit code: 0 if all pairs were tried, 2 for a wrong argument, 4 on an
// error.
#include <sys/prctl.h>
#include <csignal>
#include <cstdio>
#include <exception>
#include <set>
#include <vector>

#include "dp/standard_descriptors.h"
#include "kernels/comm/p2p/peers.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/device/cuda/stream.h"

using namespace dp::kernels::cuda;

namespace {

template <typename... Numbers>
void say(const char* format, Numbers... numbers) {
  std::printf(format, numbers...);
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  dp::open_standard_descriptors();
  std::vector<DevicePair> pairs;
  std::set<int> devices;
  for (int i = 1; i < argc; ++i) {
    int reader = 0, owner = 0;
    if (std::sscanf(argv[i], "%d:%d", &reader, &owner) != 2) {
      std::fprintf(stderr, "usage: dp_peer_probe <reading device>:<owning device> ...\n");
      return 2;
    }
    pairs.emplace_back(reader, owner);
    devices.insert({reader, owner});
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a hanging probe must not outlive its parent
  try {
    for (const int device : devices) {
      bind_device(device);
      device_memory(1);
      say(kProbeStarted, device);
    }
    for (const auto& [reader, owner] : pairs) {
      say(kProbeTries, reader, owner);
      const PeerPath verdict = reads_pattern(reader, owner) ? PeerPath::direct : PeerPath::lying;
      say(kProbeVerdict, reader, owner, static_cast<int>(verdict));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dp_peer_probe: %s\n", error.what());
    return 4;
  }
  return 0;
}
