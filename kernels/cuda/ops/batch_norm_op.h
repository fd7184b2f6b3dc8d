// What the batch normalisation ops over whole tensors share: how x lies, and how it is cut for either form of a kernel.
#pragma once

#include "kernels/cuda/cuda_op.h"
#include "kernels/cuda/ops/batch_norm.h"
#include "kernels/cuda/runtime/owner.h"

namespace dp::kernels::cuda {

class NormOp : public CudaOp {
 protected:
  // As cut_norm(), packs of `width`, `channels` at most in a block.
  NormOp(const TensorDesc& x, unsigned width, unsigned chunk, unsigned blocks, unsigned channels) : width_(width) {
    tensors_ = {resolved_channels_last(x)};
    channels_last_ = is_channels_last(tensors_[0]);
    for (const bool packs : {false, true}) {
      const unsigned own = packs ? width : 1;
      cuts_[packs] = cut_norm(tensors_[0], static_cast<int>(own), chunk, blocks, std::min(kNormLanes, channels / own));
    }
  }

  // Of two doubles for each channel of each part.
  std::size_t parts_bytes() const {
    return std::size_t{std::max(cuts_[0].parts, cuts_[1].parts)} * 2 * cuts_[0].channels * sizeof(double);
  }

  unsigned most_tiles() const { return std::max(cuts_[0].tiles, cuts_[1].tiles); }

  // Calls run.operator()<T, kWidth, kChannelsLast>(cut), packs of four or, with `wide`, of 16 bytes. `aligned`: all tensors begin where
  // packs may.
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
  NormCut cuts_[2];  // in single elements, in packs
};

// Of ops that reduce each channel: packs of 16 bytes.
class ReducingNormOp : public NormOp {
 protected:
  ReducingNormOp(const TensorDesc& x, unsigned chunk, unsigned blocks)
      : NormOp(x, static_cast<unsigned>(16 / size_of(x.type)), chunk, blocks, kReducedChannels),
        counters_(zeroed_counters(most_tiles())) {}

  unsigned* counters() const { return static_cast<unsigned*>(counters_.get()); }

 private:
  DeviceMemory counters_;  // of tiles of channels
};

}  // namespace dp::kernels::cuda
