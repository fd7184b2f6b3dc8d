// What the batch normalisation ops over whole tensors share: how x lies, and how it is cut for either form of a kernel.
#pragma once

#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/cuda_op.h"

namespace dp::kernels::cuda {

class NormOp : public CudaOp {
 protected:
  // As cut_norm().
  NormOp(const TensorDesc& x, unsigned chunk, unsigned blocks) {
    tensors_ = {resolved_channels_last(x)};
    channels_last_ = is_channels_last(tensors_[0]);
    for (const int width : {1, 4}) cuts_[width == 4] = cut_norm(tensors_[0], width, chunk, blocks);
  }

  // Of two doubles for each channel of each part.
  std::size_t parts_bytes() const {
    return std::size_t{std::max(cuts_[0].parts, cuts_[1].parts)} * 2 * cuts_[0].channels * sizeof(double);
  }

  // Calls run.operator()<T, kWidth, kChannelsLast>(cut) unless there are no values; returns the cut. `aligned`: all tensors begin
  // where packs of four may.
  template <typename Run>
  const NormCut& over_values(bool aligned, const Run& run) const {
    const bool packs = channels_last_ && cuts_[0].channels % 4 == 0 && aligned;
    const NormCut& cut = cuts_[packs];
    if (cut.parts > 0)
      in_type(tensors_[0].type, [&]<typename T>() {
        in_form(packs, channels_last_,
                [&]<int kWidth, bool kChannelsLast>() { run.template operator()<T, kWidth, kChannelsLast>(cut); });
      });
    return cut;
  }

 private:
  bool channels_last_;
  NormCut cuts_[2];  // in single elements, in packs
};

}  // namespace dp::kernels::cuda
