// Memory orders of the CUDA backend: row-major, or channels last. Channels last means N,H,W,C for activations and
// O,kH,kW,I for convolution weights. It means O,H,W,C for the weights of a linear layer that reads channels-last
// images.
#pragma once

#include "kernels/layout.h"

namespace dp::kernels::cuda {

// A tensor as `outer` blocks of channels x pixels. Pixels are contiguous in row-major order, channels in channels-last
// order.
struct Order {
  std::int64_t outer = 1, channels = 1, pixels = 1;
  bool channels_last = false;
};

Layout plain(const Shape& shape, DType type);
// For rank 4. Returns plain() for other ranks, and for one channel or one pixel, as the order is then the same.
Layout channels_last(const Shape& shape, DType type);
// For weights (O, C*H*W) of a linear layer whose input (N,C,H,W) is stored channels last.
Layout linear_channels_last(const Shape& weights, const Shape& input, DType type);
// The tensor's memory order for another element type. Its layout must be resolved.
Layout with_type(const TensorDesc& tensor, DType type);

// Error(usage) for another backend's layout.
Order order_of(const TensorDesc& tensor);
bool is_channels_last(const TensorDesc& tensor);

// The tensor; a layout any() becomes channels last, or plain.
TensorDesc resolved_channels_last(const TensorDesc& tensor);
TensorDesc resolved_plain(const TensorDesc& tensor);

}  // namespace dp::kernels::cuda
