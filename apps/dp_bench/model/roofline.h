// Input of the scaling model: ResNet18 on CIFAR-sized images as a list of GPU kernels with their operations and memory
// traffic. Activations have two bytes and are channels-last. A multiply-add counts as two operations.
#pragma once

#include <string>
#include <vector>

namespace dp_bench {

constexpr double kBucketBytes = 4e6;  // of gradients that are reduced together

// fused_norm: batch normalisation, addition and ReLU are one kernel, both forward and backward. eager: every pass is a
// kernel of its own, as in PyTorch eager.
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
  // Pooling, last layer and loss, forward and backward. A third of the time counts as forward.
  Kernel head;
  double parameters() const;
};
Work resnet18_cifar(double images, Fusion fusion);

// The longer of compute and memory time. Rates: operations and bytes per second.
double seconds(const Kernel& kernel, double operations_rate, double bytes_rate);

}  // namespace dp_bench
