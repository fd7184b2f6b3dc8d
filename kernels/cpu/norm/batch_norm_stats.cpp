// BatchNormMerge, BatchNormTrack and BatchNormRunning: a few values per channel.
#include <algorithm>
#include <cmath>
#include <memory>

#include "kernels/cpu/cpu_op.h"
#include "kernels/cpu/norm/batch_norm_plane.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

// Merges the moments of `parts` parts into `merged`: all means, then all sums of squares. Returns the count.
double merge_parts(std::int64_t channels, int parts, const double* moments, double* merged) {
  double count = 0;
  for (int part = 0; part < parts; ++part, moments += 1 + 2 * channels) {
    merge_moments(channels, count, merged, merged + channels, moments[0], moments + 1, moments + 1 + channels);
    count += moments[0];
  }
  return count;
}

class MergeOp : public HostOp {
 public:
  explicit MergeOp(const BatchNormMerge& d) : desc_(d) {}
  std::size_t workspace_bytes() const override { return static_cast<std::size_t>(2 * desc_.channels) * sizeof(double); }
  std::string implementation() const override { return "own:double"; }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<BatchNormMerge>(pointers);
    double* const merged = static_cast<double*>(workspace);
    const double count = merge_parts(desc_.channels, desc_.parts, static_cast<const double*>(args.moments), merged);
    write_stats(desc_.channels, count, merged, merged + desc_.channels, desc_.eps, static_cast<double*>(args.stats));
  }

 private:
  BatchNormMerge desc_;
};

class TrackOp : public HostOp {
 public:
  explicit TrackOp(const BatchNormTrack& d) : desc_(d) {
    for (const BatchNormTrack::Norm& norm : d.norms) channels_ = std::max(channels_, norm.channels);
  }
  std::size_t workspace_bytes() const override { return static_cast<std::size_t>(2 * channels_) * sizeof(double); }
  std::string implementation() const override { return "own:double"; }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<BatchNormTrack>(pointers);
    double* const mean = static_cast<double*>(workspace);
    for (const BatchNormTrack::Norm& norm : desc_.norms) {
      const double *const moments = static_cast<const double*>(args.moments) + norm.moments,
                          *squares = mean + norm.channels;
      float* const running = static_cast<float*>(args.running);
      const double count = merge_parts(norm.channels, desc_.parts, moments, mean);
      if (!(count > 0)) continue;
      const double divisor = count > 1 ? count - 1 : 1, own = norm.momentum, kept = 1 - own;
      for (std::int64_t c = 0; c < norm.channels; ++c) {
        if (!std::isfinite(mean[c]) || !std::isfinite(squares[c])) continue;  // from a step that is skipped or fails
        float &to_mean = running[norm.mean + c], &to_variance = running[norm.variance + c];
        to_mean = static_cast<float>(kept * to_mean + own * mean[c]);
        to_variance = static_cast<float>(kept * to_variance + own * squares[c] / divisor);
      }
    }
  }

 private:
  BatchNormTrack desc_;
  std::int64_t channels_ = 0;  // of the largest normalisation
};

class RunningOp : public HostOp {
 public:
  explicit RunningOp(const BatchNormRunning& d) : desc_(d) {}
  std::string implementation() const override { return "own:double"; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<BatchNormRunning>(pointers);
    const float *mean = static_cast<const float*>(args.mean), *variance = static_cast<const float*>(args.variance);
    double* stats = static_cast<double*>(args.stats);
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
std::unique_ptr<HostOp> make(const BatchNormTrack& d, const CpuOpOptions&) { return std::make_unique<TrackOp>(d); }
std::unique_ptr<HostOp> make(const BatchNormRunning& d, const CpuOpOptions&) { return std::make_unique<RunningOp>(d); }

}  // namespace dp::kernels
