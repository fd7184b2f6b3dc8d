// Memory orders of the CUDA backend: row-major, or channels last (activations N,H,W,C; convolution weights O,kH,kW,I; the
// weights of a linear layer that reads channels-last images O,H,W,C).
#pragma once

#include "kernels/layout.h"

namespace dp::kernels::cuda {

// A tensor as `outer` blocks of channels x pixels. Row-major: pixels lie side by side; channels_last: channels do.
struct Order {
  std::int64_t outer = 1, channels = 1, pixels = 1;
  bool channels_last = false;
};

Layout plain(const Shape& shape, DType type);
// Of a tensor of four dimensions; the plain layout where the order is the same (one channel, or one pixel) or of another rank.
Layout channels_last(const Shape& shape, DType type);
// Of the weights (O, C*H*W) of a linear layer whose input (N,C,H,W) lies channels last.
Layout linear_channels_last(const Shape& weights, const Shape& input, DType type);
// The order of a tensor whose layout is resolved, for elements of another type.
Layout with_type(const TensorDesc& tensor, DType type);

// Error(usage) for a layout of another backend.
Order order_of(const TensorDesc& tensor);
bool is_channels_last(const TensorDesc& tensor);

// The tensor with its layout; if it was any(), channels last, or plain.
TensorDesc resolved_channels_last(const TensorDesc& tensor);
TensorDesc resolved_plain(const TensorDesc& tensor);

}  // namespace dp::kernels::cuda
