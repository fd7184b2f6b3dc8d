#include "roofline.h"

#include <algorithm>

namespace dp_bench {
namespace {

constexpr double kBytes = 2;  // per activation
constexpr double kFeatures = 512, kClasses = 100;

struct Convolution {
  std::string name;
  double in, out, kernel, size_in, size_out;
  bool first = false, second = false, shortcut = false;  // position in its residual block

  double operations() const { return 2 * size_out * size_out * out * in * kernel * kernel; }
  double bytes_in() const { return size_in * size_in * in * kBytes; }
  double bytes_out() const { return size_out * size_out * out * kBytes; }
  double weights() const { return out * in * kernel * kernel; }
};

std::vector<Convolution> convolutions() {
  std::vector<Convolution> all{{"stem", 3, 64, 3, 32, 32}};
  double in = 64, size = 32;
  for (int stage = 0; stage < 4; ++stage) {
    const double width = 64 << stage;
    for (int block = 0; block < 2; ++block) {
      const bool halves = stage > 0 && block == 0;
      const double to = halves ? size / 2 : size;
      const std::string name = "l" + std::to_string(stage + 1) + "." + std::to_string(block);
      all.push_back({name + ".c1", in, width, 3, size, to, true});
      all.push_back({name + ".c2", width, width, 3, to, to, false, true});
      if (halves) all.push_back({name + ".sc", in, width, 1, size, to, false, false, true});
      in = width;
      size = to;
    }
  }
  return all;
}

}  // namespace

double Work::parameters() const {
  double sum = 0;
  for (const WorkLayer& layer : layers) sum += layer.parameters;
  return sum;
}

double seconds(const Kernel& kernel, double operations_rate, double bytes_rate) {
  return std::max(kernel.operations / operations_rate, kernel.bytes / bytes_rate);
}

Work resnet18_cifar(double images, Fusion fusion) {
  Work work;
  const std::vector<Convolution> layers = convolutions();
  for (const Convolution& c : layers) {
    const double in = c.bytes_in() * images, out = c.bytes_out() * images, weights = c.weights() * kBytes;
    const double operations = c.operations() * images;
    const auto forward = [&](double ops, double bytes) { work.kernels.push_back({c.name, false, ops, bytes}); };
    const auto backward = [&](double ops, double bytes) { work.kernels.push_back({c.name, true, ops, bytes}); };
    work.layers.push_back({c.name, c.weights() + 2 * c.out});
    const double mask = out / 16;  // of the ReLU: one bit per element
    forward(operations, in + out + weights);
    if (fusion == Fusion::fused_norm) {
      forward(0, c.shortcut ? 3 * out : 2 * out + (c.second ? out : 0) + out + mask);
      backward(0, c.shortcut ? 5 * out : 2 * (2 * out + mask) + out + (c.second ? out : 0));
    } else {
      forward(0, out);      // statistics
      forward(0, 2 * out);  // normalise
      if (c.second) forward(0, 3 * out);
      if (!c.shortcut) forward(0, 2 * out);
      if (!c.shortcut) backward(0, 3 * out);
      backward(0, 2 * out);
      backward(0, 3 * out);
    }
    if (c.name != "stem") backward(operations, out + in + weights);
    backward(operations, out + in + weights * 2);
    if (c.first) backward(0, 3 * in);  // adds the shortcut's gradient
  }
  const double last = layers.back().size_out * layers.back().size_out * kFeatures * kBytes * images;
  work.head = {"fc", false, 3 * 2 * kFeatures * kClasses * images, last * 2 + 3 * kFeatures * kClasses * 4};
  work.layers.push_back({"fc", kFeatures * kClasses + kClasses});
  // Bytes per parameter. 22: weights and momenta read and written and gradients read in float32, and a 16-bit copy of
  // the weights written. Eager: 12 more, to convert weights and gradients in separate passes.
  work.update = {"sgd", true, 0, work.parameters() * (fusion == Fusion::eager ? 22 + 12 : 22)};
  return work;
}

}  // namespace dp_bench
