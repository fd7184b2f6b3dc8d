#include "scaling_model.h"

#include <algorithm>
#include <cstdio>
#include <map>

namespace dp_bench {
namespace {

constexpr double kGradientBytes = 4, kWeightBytes = 4;

// One device's step by layers. All in seconds, except the parameter counts.
struct Times {
  std::vector<std::string> order;
  std::map<std::string, double> forward, backward, parameters;
  double update = 0, all_forward = 0, all_backward = 0, all_parameters = 0;
};

Times times_of(const Hardware& hardware, int images) {
  const Work work = resnet18_cifar(images, hardware.fusion);
  const double wider = hardware.activation_bytes / 2;
  const auto at = [&](const Kernel& kernel) {
    return seconds(kernel, hardware.operations * hardware.operations_share,
                   hardware.bytes * hardware.bytes_share / wider) +
           hardware.kernel_seconds;
  };
  Times times;
  for (const WorkLayer& layer : work.layers) {
    times.order.push_back(layer.name);
    times.parameters[layer.name] = layer.parameters;
  }
  for (const Kernel& kernel : work.kernels)
    (kernel.backward ? times.backward : times.forward)[kernel.layer] += at(kernel);
  times.forward["fc"] = at(work.head) / 3;
  times.backward["fc"] = 2 * at(work.head) / 3;
  times.update = at(work.update);
  times.all_parameters = work.parameters();
  for (const auto& [layer, time] : times.forward) times.all_forward += time;
  for (const auto& [layer, time] : times.backward) times.all_backward += time;
  return times;
}

struct Bucket {
  std::vector<std::string> layers;
  double bytes = 0;
};

// From the last layer to the first, the order in which backward completes the gradients.
std::vector<Bucket> buckets_of(const Times& times) {
  std::vector<Bucket> all;
  Bucket open;
  for (auto layer = times.order.rbegin(); layer != times.order.rend(); ++layer) {
    open.layers.push_back(*layer);
    open.bytes += times.parameters.at(*layer) * kGradientBytes;
    if (open.bytes < kBucketBytes) continue;
    all.push_back(open);
    open = {};
  }
  if (!open.layers.empty()) all.push_back(open);
  return all;
}

class Model {
 public:
  Model(const Hardware& hardware, int devices, int images, const Hosts& hosts)
      : hardware_(hardware),
        hosts_(hosts),
        n_(devices),
        times_(times_of(hardware, images)),
        buckets_(buckets_of(times_)),
        call_(hardware.call_seconds * (0.5 + 0.5 * n_ / 8)) {}

  double step(Strategy strategy) const {
    const double gradients = times_.all_parameters * kGradientBytes, weights = times_.all_parameters * kWeightBytes;
    const double alone = times_.all_forward + times_.all_backward + times_.update;
    if (n_ == 1 && hosts_.count == 1) return alone;
    if (strategy == Strategy::star) return alone + (n_ - 1) * (gradients + weights) / hardware_.star + 2 * call_;
    if (strategy == Strategy::naive) return alone + whole(gradients) + whole(weights);
    std::map<std::string, double> late;  // arrival of a layer's weights, after the step's start
    double end = 0;
    for (int settled = 0; settled < 3; ++settled) end = once(strategy, late);
    return end;
  }

 private:
  double whole(double bytes) const { return call_ + bytes / hardware_.bus; }  // a reduce or a broadcast
  double part(double bytes) const {
    return call_ + (n_ - 1) / n_ * bytes / hardware_.bus;
  }  // reduce-scatter, all-gather
  double all_reduce(double bytes) const {
    const double inside = call_ + 2 * (n_ - 1) / n_ * bytes / hardware_.bus;
    if (hosts_.count == 1) return inside;
    return inside + hosts_.call_seconds + 2.0 * (hosts_.count - 1) / hosts_.count * bytes / hosts_.bytes;
  }

  double once(Strategy strategy, std::map<std::string, double>& late) const {
    double now = 0;
    for (const std::string& layer : times_.order) {
      if (const auto wait = late.find(layer); wait != late.end()) now = std::max(now, wait->second);
      now += times_.forward.at(layer);
    }
    double up = 0, down = 0, talking = 0;  // end of reductions; end of broadcasts; their total time
    std::map<std::string, double> done;
    for (const Bucket& bucket : buckets_) {
      for (const std::string& layer : bucket.layers) now += times_.backward.at(layer);
      const double parameters = bucket.bytes / kGradientBytes, weights = parameters * kWeightBytes;
      const double update = times_.update * parameters / times_.all_parameters;
      if (strategy == Strategy::ddp) {
        up = std::max(up, now) + all_reduce(bucket.bytes);
        talking += all_reduce(bucket.bytes);
      } else {
        const bool master = strategy == Strategy::master;
        const double there = master ? whole(bucket.bytes) : part(bucket.bytes),
                     back = master ? whole(weights) : part(weights);
        up = std::max(up, now) + there;
        down = std::max(down, up + (master ? update : update / n_)) + back;
        talking += there + back;
      }
      for (const std::string& layer : bucket.layers) done[layer] = down;
    }
    const double backward_end = now;
    double end = now + hardware_.steal * std::min(talking, times_.all_backward);
    late.clear();
    if (strategy == Strategy::ddp) return std::max(end, up) + times_.update;
    end += strategy == Strategy::master ? times_.update : times_.update / n_;  // competes with backward for memory
    for (const auto& [layer, when] : done) late[layer] = std::max(0.0, when - end + (end - backward_end));
    return end;
  }

  const Hardware& hardware_;
  const Hosts hosts_;
  const double n_;
  const Times times_;
  const std::vector<Bucket> buckets_;
  const double call_;
};

}  // namespace

const std::vector<Hardware>& known_hardware() {
  static const std::vector<Hardware> all{
      {"H200, NVSwitch", 790e12, 4.3e12, .60, .85, 2e-6, 370e9, 18e-6, .08, 200e9, 2, 8, Fusion::fused_norm},
      {"H200, PCIe 5 alone", 790e12, 4.3e12, .60, .85, 2e-6, 40e9, 25e-6, .05, 40e9, 2, 8, Fusion::fused_norm},
      {"RTX 2080 Ti, PCIe 3 without peer access", 13.4e12, .616e12, .60, .85, 6e-6, 5e9, 60e-6, .05, 6e9, 4, 4,
       Fusion::eager},
      {"RTX 2080 Ti, NVLink bridge", 13.4e12, .616e12, .60, .85, 6e-6, 21e9, 25e-6, .05, 21e9, 4, 2, Fusion::eager}};
  return all;
}

std::string constants_of(const Hardware& h) {
  char text[700];
  std::snprintf(
      text, sizeof text,
      "Constants: %.1f TFLOP/s and %.2f TB/s, of which kernels reach %.0f %% and %.0f %%; at least %.0f us per kernel; "
      "ring %.0f GB/s; %.0f us per collective of eight devices; compute slows by %.0f %% of a collective's time; plain "
      "copies %.0f GB/s; activations of %.0f bytes%s; %s; float32 gradients and weights in buckets of 4 MB.",
      h.operations / 1e12, h.bytes / 1e12, 100 * h.operations_share, 100 * h.bytes_share, h.kernel_seconds * 1e6,
      h.bus / 1e9, h.call_seconds * 1e6, 100 * h.steal, h.star / 1e9, h.activation_bytes,
      h.activation_bytes < 4 ? " (mixed precision on tensor cores; not calibrated by measurements of dp)" : "",
      h.fusion == Fusion::eager ? "one kernel per pass"
                                : "one kernel per direction for normalisation, addition and ReLU");
  return text;
}

const char* to_string(Strategy strategy) {
  switch (strategy) {
    case Strategy::star: return "plain copies to and from the master";
    case Strategy::naive: return "dp without overlap";
    case Strategy::master: return "dp master";
    case Strategy::sharded: return "dp sharded";
    case Strategy::ddp: return "ddp";
  }
  return "";
}

double step_seconds(const Hardware& hardware, int devices, int images_each, Strategy strategy, const Hosts& hosts) {
  return Model(hardware, devices, images_each, hosts).step(strategy);
}

}  // namespace dp_bench
