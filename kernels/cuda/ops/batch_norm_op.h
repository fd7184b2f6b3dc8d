// Base classes of the batch normalisation ops on whole tensors: layout of x, and its
// division into blocks with and without packs.
#pragma once

#include "kernels/cuda/cuda_op.h"
#include "kernels/cuda/ops/batch_norm_reduce.h"
#include "kernels/cuda/runtime/owner.h"

namespace dp::kernels::cuda {

class NormOp : public CudaOp {
 protected:
  // `width`: elements of a pack.
  NormOp(const TensorDesc& x, unsigned width, const NormLimits& limits) : width_(width) {
    tensors_ = {resolved_channels_last(x)};
    channels_last_ = is_channels_last(tensors_[0]);
    for (const bool packs : {false, true}) cuts_[packs] = cut_norm(tensors_[0], packs ? width : 1, limits);
  }

  // Workspace for two doubles per channel and part.
  std::size_t parts_bytes() const {
    return std::size_t{std::max(cuts_[0].parts, cuts_[1].parts)} * 2 * cuts_[0].channels * sizeof(double);
  }

  unsigned most_tiles() const { return std::max(cuts_[0].tiles, cuts_[1].tiles); }

  // Calls run.operator()<T, kWidth, kChannelsLast>(cut). Packs have four elements, or 16
  // bytes with `wide`. `aligned`: all tensors are aligned to packs.
  template <bool wide = false, typename Run>
  void over_values(bool aligned, const Run& run) const {
    const bool packs = channels_last_ && cuts_[0].channels % width_ == 0 && aligned;
    const NormCut& cut = cuts_[packs];
    in_type(tensors_[0].type, [&]<typename T>() {
      if (packs) return run.template operator() < T, wide ? kWidePack<T> : 4, true > (cut);
      return channels_last_ ? run.template operator()<T, 1, true>(cut) : run.template operator()<T, 1, false>(cut);
    });
  }
  bool is_empty() const { return cuts_[0].rows == 0; }

 private:
  unsigned width_;
  bool channels_last_;
  NormCut cuts_[2];  // for single elements, for packs
};

// Base of ops that reduce each channel. Packs have 16 bytes.
class ReducingNormOp : public NormOp {
 public:
  std::size_t workspace_bytes() const override { return parts_bytes(); }

 protected:
  // `chunk`: rows that a thread takes at once.
  ReducingNormOp(const TensorDesc& x, unsigned chunk)
      : NormOp(x, static_cast<unsigned>(16 / size_of(x.type)),
               {kReduceThreads, chunk, kReduceBlocks, kReducedChannels}),
        counters_(zeroed_counters(most_tiles())) {}

  unsigned* counters() const { return static_cast<unsigned*>(counters_.get()); }

 private:
  DeviceMemory counters_;  // one per tile of channels
};

}  // namespace dp::kernels::cuda
