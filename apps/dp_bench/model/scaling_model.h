// What a training step of ResNet18 on CIFAR-sized images takes on GPUs that are not here: kernels at a share of the device's
// rates, transfers of constant cost plus bytes by bandwidth, buckets as they become ready. Modelled, never measured.
#pragma once

#include <string>
#include <vector>

#include "roofline.h"

namespace dp_bench {

struct Hardware {
  std::string name;
  double operations = 0, bytes = 0;                    // a second, at best
  double operations_share = 0.60, bytes_share = 0.85;  // of these that kernels reach
  double kernel_seconds = 0;                           // the least time of a kernel
  double bus = 0;                                      // bytes a second of a ring between the devices
  double call_seconds = 0;                             // of a collective between eight devices, whatever its size
  double steal = 0;                                    // share of a collective's time that computing loses beside it
  double star = 0;                                     // bytes a second of plain copies into or out of one device
  double activation_bytes = 2;
  int most_devices = 8;
  Fusion fusion = Fusion::fused_norm;
};
const std::vector<Hardware>& known_hardware();
std::string constants_of(const Hardware& hardware);

// Hosts of equal devices, joined by a network.
struct Hosts {
  int count = 1;
  double bytes = 0;         // a second, into and out of one host
  double call_seconds = 0;  // that it adds to a collective
};

// star: plain copies into and out of the master; naive: whole gradient, then update, then broadcast; the others in buckets,
// overlapped with backward and the next forward; ddp: all-reduce, update everywhere at the end.
enum class Strategy { star, naive, master, sharded, ddp };
const char* to_string(Strategy strategy);

// Seconds of a step in the steady state, with so many images on each of `devices` (of one host).
double step_seconds(const Hardware& hardware, int devices, int images_each, Strategy strategy, const Hosts& hosts = {});

}  // namespace dp_bench
