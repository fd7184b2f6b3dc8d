// Statistics and times that DataParallel reports.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace dp {

// Totals over the samples since the last take_stats(); in training, over the samples whose loss is finite.
struct Stats {
  double loss_sum = 0;
  std::int64_t samples = 0;
  std::int64_t top1 = 0;   // samples whose label has the largest logit
  std::int64_t top5 = 0;   // samples whose label is among the five largest logits
  bool has_labels = true;  // false: the samples have targets, and the accuracies are NaN
  // Optimizer steps skipped because of NaN or infinity, including overflows of the scaled gradient.
  std::int64_t skipped = 0;
  // L2 norm of the last step's gradient before clipping; only with clipping, skipping or loss scaling.
  double grad_norm = 0;
  std::optional<float> loss_scale{};  // of the next step, with float16

  double loss() const { return samples ? plain(loss_sum / static_cast<double>(samples)) : 0; }
  double accuracy1() const { return percent(top1); }
  double accuracy5() const { return percent(top5); }

  // NaN without a sign, which would be printed.
  static double plain(double value) { return std::isnan(value) ? std::abs(value) : value; }

 private:
  double percent(std::int64_t count) const {
    if (!has_labels) return std::numeric_limits<double>::quiet_NaN();
    return samples ? 100.0 * static_cast<double>(count) / static_cast<double>(samples) : 0;
  }
};

// A figure of an evaluation: "mae", 0.25.
struct Metric {
  std::string name;
  double value = 0;
};

// Seconds of a replica's training steps since the last take_phase_times(). Each phase counts all time in which it
// computes, also while another phase overlaps.
struct PhaseTimes {
  double scatter = 0, forward = 0, backward = 0, reduce = 0, update = 0, broadcast = 0;
  double waiting = 0;  // rest of the steps' time: for other replicas or the caller
  double graph = 0;    // steps run as a CUDA graph, forward to broadcast; of all replicas if they share a graph
};

// Time of one part of a training step.
struct LayerTime {
  std::string name;            // name in --print-plan; "(update)": work of a phase outside any layer
  std::string implementation;  // of the layer's op; empty outside layers
  double seconds = 0;          // per step, median of the traced steps
  double floor_seconds = 0;    // lower bound: arithmetic or memory traffic at the device's rates; 0: unknown
};

// An automatic choice and its reason: {"nccl", "p2p would copy between cuda:0 and cuda:1 through the host (no peer
// access)"}.
struct Choice {
  std::string what, reason;
};

}  // namespace dp
