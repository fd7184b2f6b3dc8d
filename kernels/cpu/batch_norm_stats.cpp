// BatchNormMerge and BatchNormRunning: a few numbers for each channel.
#include <cmath>
#include <memory>

#include "kernels/cpu/batch_norm_plane.h"
#include "kernels/cpu/cpu_op.h"

namespace dp::kernels {
namespace {

class MergeOp : public HostOp {
 public:
  explicit MergeOp(const BatchNormMerge& d) : desc_(d) {}
  std::size_t workspace_bytes() const override { return static_cast<std::size_t>(2 * desc_.channels) * sizeof(double); }
  std::string implementation() const override { return "own:double"; }

  void execute(std::span<void* const> args, void* workspace) override {
    const std::int64_t channels = desc_.channels;
    const double* moments = static_cast<const double*>(args[0]);
    double* stats = static_cast<double*>(args[1]);
    float *running_mean = static_cast<float*>(args[2]), *running_variance = static_cast<float*>(args[3]);
    double *mean = static_cast<double*>(workspace), *squares = mean + channels, count = 0;
    for (int part = 0; part < desc_.parts; ++part, moments += 1 + 2 * channels) {
      merge_moments(channels, count, mean, squares, moments[0], moments + 1, moments + 1 + channels);
      count += moments[0];
    }
    if (stats != nullptr) {
      stats[0] = count;
      const double divisor = count > 0 ? count : 1;
      for (std::int64_t c = 0; c < channels; ++c) {
        stats[1 + c] = mean[c];
        stats[1 + channels + c] = 1 / std::sqrt(squares[c] / divisor + desc_.eps);
      }
    }
    if (running_mean == nullptr || !(count > 0)) return;
    const double divisor = count > 1 ? count - 1 : 1, own = desc_.momentum, kept = 1 - own;
    for (std::int64_t c = 0; c < channels; ++c) {
      if (!std::isfinite(mean[c]) || !std::isfinite(squares[c])) continue;  // of a step that is skipped or fails
      running_mean[c] = static_cast<float>(kept * running_mean[c] + own * mean[c]);
      running_variance[c] = static_cast<float>(kept * running_variance[c] + own * squares[c] / divisor);
    }
  }

 private:
  BatchNormMerge desc_;
};

class RunningOp : public HostOp {
 public:
  explicit RunningOp(const BatchNormRunning& d) : desc_(d) {}
  std::string implementation() const override { return "own:double"; }

  void execute(std::span<void* const> args, void*) override {
    const float *mean = static_cast<const float*>(args[0]), *variance = static_cast<const float*>(args[1]);
    double* stats = static_cast<double*>(args[2]);
    stats[0] = 0;
    for (std::int64_t c = 0; c < desc_.channels; ++c) {
      stats[1 + c] = mean[c];
      stats[1 + desc_.channels + c] = 1 / std::sqrt(variance[c] + desc_.eps);
    }
  }

 private:
  BatchNormRunning desc_;
};

}  // namespace

std::unique_ptr<HostOp> make(const BatchNormMerge& d, const CpuOpOptions&) { return std::make_unique<MergeOp>(d); }
std::unique_ptr<HostOp> make(const BatchNormRunning& d, const CpuOpOptions&) { return std::make_unique<RunningOp>(d); }

}  // namespace dp::kernels
