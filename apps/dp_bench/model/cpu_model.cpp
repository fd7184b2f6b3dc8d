#include "cpu_model.h"

#include <algorithm>
#include <cstdio>

#include "roofline.h"

namespace dp_bench {
namespace {

constexpr double kWider = 2;  // roofline.h counts activations of two bytes, here they have four
constexpr double kParameterBytes = 4;

}  // namespace

// The rate of operations is that of ResNet18 on one Zen 4 core with AVX-512 and Winograd (docs/decisions/0016). The
// server has twelve channels of DDR5-4800. All cores together reach 80 % of their bandwidth, by assumption.
const CpuServer& known_server() {
  static const CpuServer server{"64 cores of a Zen 4 server", 64, 200e9, 25e9, 370e9, 10e-6};
  return server;
}

std::string constants_of(const CpuServer& server) {
  char text[400];
  std::snprintf(
      text, sizeof text,
      "Constants: %.0f GFLOP/s per core, at the clock of a single busy core; %.0f GB/s for one core, %.0f GB/s "
      "for all; %.0f us per barrier; float32; one replica of one thread per core.",
      server.operations / 1e9, server.core_bytes / 1e9, server.server_bytes / 1e9, server.call_seconds * 1e6);
  return text;
}

CpuStep step_of(const CpuServer& server, int replicas, double images) {
  const double bandwidth = std::min(server.core_bytes, server.server_bytes / replicas);
  const Work work = resnet18_cifar(images, Fusion::fused_norm);
  CpuStep step;
  for (const Kernel& kernel : work.kernels)
    (kernel.operations > 0 ? step.convolutions : step.passes) += seconds(kernel, server.operations, bandwidth / kWider);
  step.convolutions += seconds(work.head, server.operations, bandwidth / kWider);
  const double parameters = work.parameters() * kParameterBytes, slice = parameters / replicas;
  if (replicas == 1) {
    step.exchange = 5 * slice / bandwidth;  // reads gradient, weight and momentum, writes weight and momentum
    return step;
  }
  // A replica reads its slice of every replica's gradient: as many bytes as one whole gradient. It updates the slice.
  // Then it reads the weights of all other slices.
  const double barriers = 2 * parameters / kBucketBytes * server.call_seconds;
  step.exchange = (2 * parameters + 4 * slice) / bandwidth + barriers;
  return step;
}

}  // namespace dp_bench
