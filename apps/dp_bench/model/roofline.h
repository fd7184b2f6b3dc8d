// ResNet18 on CIFAR-sized images as a list of GPU kernels, each with its arithmetic and memory traffic: what the scaling model
// computes with. Activations of two bytes, channels last; a multiplication and an addition are two operations.
#pragma once

#include <string>
#include <vector>

namespace dp_bench {

// What is one kernel: batch normalisation, addition and ReLU together each way, or every pass by itself as in PyTorch eager.
enum class Fusion { fused_norm, eager };

struct WorkLayer {
  std::string name;  // "l1.0.c1"; "fc" is the last
  double parameters = 0;
};
struct Kernel {
  std::string layer;
  bool backward = false;
  double operations = 0, bytes = 0;
};
struct Work {
  std::vector<WorkLayer> layers;  // in forward order, "fc" last
  std::vector<Kernel> kernels;
  Kernel update;  // of all parameters
  // Pooling, last layer and loss, both ways; a third of it counts as forward.
  Kernel head;
  double parameters() const;
};
Work resnet18_cifar(double images, Fusion fusion);

// At these rates: operations and bytes a second.
double seconds(const Kernel& kernel, double operations_rate, double bytes_rate);

}  // namespace dp_bench
