// Base class of the pooling ops: layouts, geometry, and choice of the kernel's form.
#pragma once

#include "kernels/cuda/cuda_op.h"
#include "kernels/cuda/ops/pool.h"

namespace dp::kernels::cuda {

class PoolOp : public CudaOp {
 protected:
  // tensors_ are x and y in forward, dy and dx in backward. `global`: the window is the whole image.
  enum class Direction { forward, backward };
  PoolOp(Direction direction, const TensorDesc& large, const TensorDesc& pooled, const Window& window,
         bool global = false) {
    if (direction == Direction::forward) {
      const TensorDesc x = resolved_channels_last(large);
      tensors_ = {x, in_order_of(x, pooled)};
    } else {
      const TensorDesc dy = large.layout.any() ? resolved_channels_last(pooled) : in_order_of(large, pooled);
      tensors_ = {dy, in_order_of(dy, large)};
    }
    channels_last_ = both_channels_last(tensors_[0], tensors_[1]);
    pool_ = {image_of(large.shape), image_of(pooled.shape), window.kernel,
             window.kernel,         window.stride,          window.padding};
    if (global) {
      pool_.kernel_rows = static_cast<int>(pool_.large.rows), pool_.kernel_cols = static_cast<int>(pool_.large.cols);
      pool_.stride = 1, pool_.padding = 0;
    }
    index_count(large);
    count_ = index_count(tensors_[1]);
  }

  // Whether the kernel can use packs of four for tensors at these addresses.
  template <typename... Pointers>
  bool in_packs(Pointers... pointers) const {
    return channels_last_ && pool_.large.channels % 4 == 0 && take_packs(pointers...);
  }

  // Calls run.operator()<T, kWidth, kChannelsLast>().
  template <typename Run>
  void in_form_of(bool packs, const Run& run) const {
    in_type(tensors_[0].type, [&]<typename T>() {
      in_form(packs, channels_last_,
              [&]<int kWidth, bool kChannelsLast>() { run.template operator()<T, kWidth, kChannelsLast>(); });
    });
  }

  bool channels_last_ = false;
  Pool pool_;
  unsigned count_ = 0;  // elements of the output
};

}  // namespace dp::kernels::cuda
