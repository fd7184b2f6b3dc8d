// dp_peer_probe <reader> <owner>: ends with kReadsRight or kReadsWrong; anything else: the probe could not be made.
#include <sys/prctl.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "kernels/cuda/peer_probe.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: dp_peer_probe <reading device> <owning device>\n");
    return 2;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a probe that hangs does not outlive the program that waits for it
  try {
    return dp::kernels::cuda::reads_pattern(std::atoi(argv[1]), std::atoi(argv[2])) ? dp::kernels::cuda::kReadsRight
                                                                                    : dp::kernels::cuda::kReadsWrong;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dp_peer_probe: %s\n", error.what());
    return 4;
  }
}
