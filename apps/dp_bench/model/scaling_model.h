// Models the time of a ResNet18 training step on CIFAR-sized images, for GPUs that are not available. Kernels run at a
// share of the device's peak rates. A transfer takes a constant plus bytes / bandwidth. Buckets are reduced as they
// become ready. Nothing here is measured.
#pragma once

#include <string>
#include <vector>

#include "roofline.h"

namespace dp_bench {

struct Hardware {
  std::string name;
  double operations = 0, bytes = 0;                    // peak rates per second
  double operations_share = 0.60, bytes_share = 0.85;  // share of the peak that kernels reach
  double kernel_seconds = 0;                           // added to each kernel's time
  double bus = 0;                                      // bandwidth of a ring between the devices, bytes per second
  double call_seconds = 0;                             // latency of a collective between eight devices
  double steal = 0;                                    // compute time lost per time of an overlapped collective
  double star = 0;                                     // plain copies into or out of one device, bytes per second
  double activation_bytes = 2;
  int most_devices = 8;
  Fusion fusion = Fusion::fused_norm;
};
const std::vector<Hardware>& known_hardware();
std::string constants_of(const Hardware& hardware);

// Hosts of equal devices, joined by a network.
struct Hosts {
  int count = 1;
  double bytes = 0;         // per second, into and out of one host
  double call_seconds = 0;  // latency added to a collective
};

// star: plain copies into and out of the master. naive: reduces the whole gradient, then updates, then broadcasts.
// master, sharded: in buckets, overlapped with backward and the next forward. ddp: all-reduces buckets during backward,
// then every device updates all weights.
enum class Strategy { star, naive, master, sharded, ddp };
const char* to_string(Strategy strategy);

// Seconds per step in steady state. `devices` is per host, `images_each` per device.
double step_seconds(const Hardware& hardware, int devices, int images_each, Strategy strategy, const Hosts& hosts = {});

}  // namespace dp_bench
