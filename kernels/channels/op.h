// Ops along the channels of (N,C,H,W), or the features of (N,features): one trained number for each, and softmax.
#pragma once

#include "kernels/op.h"

namespace dp::kernels {

// What a channel's number w makes of its elements x. One number may be that of all channels.
enum class Channelwise {
  add,   // x + w
  prelu  // x, or w * x where x is not positive
};

inline void check_activation(const OpCheck& op, const TensorDesc& x) {
  op.one_type({&x});
  op.require(x.shape.rank() == 2 || x.shape.rank() == 4, "the tensor must have two or four dimensions");
}
inline void check_channelwise(const OpCheck& op, const TensorDesc& x, std::int64_t numbers) {
  check_activation(op, x);
  op.require(numbers == 1 || numbers == x.shape[1], "there must be one number, or one for each channel");
}

// y has x's layout; may run in place. w: `numbers` of the compute type.
struct ChannelwiseForward {
  static constexpr const char* kName = "channelwise_forward";
  static constexpr int kActivations = 2;  // tensors of x's size that the op reads or writes
  DP_ARGS(x, w, y);
  TensorDesc x;
  std::int64_t numbers = 1;
  Channelwise function = Channelwise::add;

  void check(const OpCheck& op) const { check_channelwise(op, x, numbers); }
};
DP_ON_EVERY_BACKEND(ChannelwiseForward);

// dx = dy times the derivative by x; dw is the sum of dy times the derivative by w over all elements of a number. dy
// and dx have x's layout; dx may be dy. With `add`, dx would be dy: x, w and dx are null.
struct ChannelwiseBackward {
  static constexpr const char* kName = "channelwise_backward";
  DP_ARGS(dy, x, w, dx, dw);
  TensorDesc x;
  std::int64_t numbers = 1;
  Channelwise function = Channelwise::add;

  void check(const OpCheck& op) const { check_channelwise(op, x, numbers); }
  // The bytes that it reads and writes.
  double bytes() const {
    const int tensors = function == Channelwise::add ? 1 : 3;
    return static_cast<double>(x.shape.numel()) * static_cast<double>(size_of(x.type)) * tensors;
  }
};
DP_ON_EVERY_BACKEND(ChannelwiseBackward);

// y = exp(x) / sum of exp(x) over the channels of a pixel. y has x's layout; may run in place.
struct SoftmaxForward {
  static constexpr const char* kName = "softmax_forward";
  static constexpr int kActivations = 2;
  DP_ARGS(x, y);
  TensorDesc x;

  void check(const OpCheck& op) const { check_activation(op, x); }
};
DP_ON_EVERY_BACKEND(SoftmaxForward);

// dx = y * (dy - sum of dy * y over the channels of a pixel). All tensors have x's layout; dx may be dy.
struct SoftmaxBackward {
  static constexpr const char* kName = "softmax_backward";
  static constexpr int kActivations = 3;
  DP_ARGS(dy, y, dx);
  TensorDesc x;

  void check(const OpCheck& op) const { check_activation(op, x); }
};
DP_ON_EVERY_BACKEND(SoftmaxBackward);

}  // namespace dp::kernels
