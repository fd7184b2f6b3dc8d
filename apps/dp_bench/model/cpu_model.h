// Models a ResNet18 training step on CIFAR-sized images in float32 on a CPU server, with one replica of one thread per
// core. Nothing here is measured on such a server.
#pragma once

#include <string>

namespace dp_bench {

struct CpuServer {
  std::string name;
  int cores = 1;
  double operations = 0;    // of convolutions on one core, per second
  double core_bytes = 0;    // memory bandwidth that one core reaches alone, per second
  double server_bytes = 0;  // of all cores together
  double call_seconds = 0;  // a barrier between all replicas
};
const CpuServer& known_server();
std::string constants_of(const CpuServer& server);

// The parts of a step, in seconds. They do not overlap, because the core of a replica does one after another.
struct CpuStep {
  double convolutions = 0;  // and the last layer
  double passes = 0;        // over activations: normalisation, addition, ReLU
  double exchange = 0;      // gradients are reduced, updated and gathered as with --reduce sharded
  double total() const { return convolutions + passes + exchange; }
};
// `replicas`: at most the number of cores. `images`: the number per replica.
CpuStep step_of(const CpuServer& server, int replicas, double images);

}  // namespace dp_bench
