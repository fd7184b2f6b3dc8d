// Ops that treat each element alike, products that broadcast, and copies.
#pragma once

#include "dp/functions.h"
#include "kernels/op.h"

namespace dp::kernels {

// y = max(0, x); may run in place.
struct ReluForward {
  static constexpr const char* kName = "relu_forward";
  DP_ARGS(x, y);
  TensorDesc x;

  void check(const OpCheck& op) const { op.one_type({&x}); }
};
DP_ON_EVERY_BACKEND(ReluForward);

// dx = y > 0 ? dy * scale : 0; may run in place on dy. All tensors have x's layout. If a dropout follows the ReLU, y is
// the dropout's result and `scale` its scale; dx is then the gradient through both.
struct ReluBackward {
  static constexpr const char* kName = "relu_backward";
  DP_ARGS(dy, y, dx);
  TensorDesc x;
  float scale = 1;

  void check(const OpCheck& op) const { op.one_type({&x}); }
};
DP_ON_EVERY_BACKEND(ReluBackward);

// y = function(x); may run in place.
struct FunctionForward {
  static constexpr const char* kName = "function_forward";
  DP_ARGS(x, y);
  TensorDesc x;
  Function function;

  void check(const OpCheck& op) const { op.one_type({&x}); }
};
DP_ON_EVERY_BACKEND(FunctionForward);

// dx = dy * the function's derivative at x; may run in place on dy. All tensors have x's layout.
struct FunctionBackward {
  static constexpr const char* kName = "function_backward";
  DP_ARGS(dy, x, dx);
  TensorDesc x;
  Function function;

  void check(const OpCheck& op) const { op.one_type({&x}); }
};
DP_ON_EVERY_BACKEND(FunctionBackward);

// y = a + b, then max(0, y) if relu. All tensors have x's layout. May run in place on a.
struct AddForward {
  static constexpr const char* kName = "add_forward";
  DP_ARGS(a, b, y);
  TensorDesc x;
  bool relu = false;

  void check(const OpCheck& op) const { op.one_type({&x}); }
};
DP_ON_EVERY_BACKEND(AddForward);

// The elements of x that one factor multiplies: one element, all pixels of a channel, or all channels of a pixel.
enum class Broadcast { none, pixels, channels };
inline Broadcast broadcast_of(const Shape& x, const Shape& s) {
  return x == s ? Broadcast::none : s[1] == x[1] ? Broadcast::pixels : Broadcast::channels;
}
inline void check_factor(const OpCheck& op, const TensorDesc& x, const TensorDesc& s) {
  op.one_type({&x, &s});
  if (x.shape == s.shape) return;
  op.rank({&x, &s}, 4);
  const std::int64_t n = x.shape[0];
  op.require(s.shape == Shape{n, x.shape[1], 1, 1} || s.shape == Shape{n, 1, x.shape[2], x.shape[3]},
             "s must have x's shape, or one value for each channel or for each pixel");
}

// y = x * s. The shape of s is x's, (N,C,1,1) with a factor for each channel, or (N,1,H,W) with one for each pixel. y
// has x's layout. If s has x's shape, it has x's layout, too; otherwise it is row-major. May run in place on x.
struct MultiplyForward {
  static constexpr const char* kName = "multiply_forward";
  DP_ARGS(x, s, y);
  TensorDesc x, s;

  void check(const OpCheck& op) const { check_factor(op, x, s); }
};
DP_ON_EVERY_BACKEND(MultiplyForward);

// dx = dy * s. ds is the sum of dy * x over the elements that a factor multiplies. Layouts as in forward. dx or ds may
// be null. May run in place on dy.
struct MultiplyBackward {
  static constexpr const char* kName = "multiply_backward";
  DP_ARGS(dy, x, s, dx, ds);
  TensorDesc x, s;

  void check(const OpCheck& op) const { check_factor(op, x, s); }
};
DP_ON_EVERY_BACKEND(MultiplyBackward);

// Copies channels: y[:, to + i * to_step] = x[:, from + i * from_step] for i below `count`. The other channels of y
// stay as they are. Both are (N,C,H,W) or (N,features), and may have different layouts. A copy of y's last channel also
// sets y's padding to zero.
struct CopyChannels {
  static constexpr const char* kName = "copy_channels";
  DP_ARGS(x, y);
  TensorDesc x, y;
  std::int64_t from = 0, to = 0, count = 0;
  std::int64_t from_step = 1, to_step = 1;

  void check(const OpCheck& op) const {
    op.one_type({&x, &y});
    op.require(x.shape.rank() == 2 || x.shape.rank() == 4, "the tensors must have two or four dimensions");
    op.require(x.shape.rank() == y.shape.rank(), "the tensors have different numbers of dimensions");
    for (int axis = 0; axis < x.shape.rank(); ++axis)
      op.require(axis == 1 || x.shape[axis] == y.shape[axis], "batch and pixels of the tensors differ");
    op.require(from_step >= 1 && to_step >= 1, "the steps must be at least 1");
    op.require(count >= 1 && from >= 0 && to >= 0 && from + (count - 1) * from_step < x.shape[1] &&
                   to + (count - 1) * to_step < y.shape[1],
               "the channels must be in both tensors");
  }
  // The bytes that it reads and writes.
  double bytes() const {
    const std::int64_t elements = x.shape.numel() / x.shape[1] * count;
    return 2.0 * static_cast<double>(elements) * static_cast<double>(size_of(x.type));
  }
};
DP_ON_EVERY_BACKEND(CopyChannels);

// y = kept ? x/(1-p) : 0. dp::dropout_words determines which elements are kept; elements are counted in C,H,W order of
// the sample. The backward pass is the same op applied to dy. May run in place.
struct DropoutApply {
  static constexpr const char* kName = "dropout";
  DP_ARGS(x, y, samples, inputs);  // samples: i64 (N). inputs: StepInputs
  TensorDesc x;
  DropoutSpec dropout;

  void check(const OpCheck& op) const {
    op.one_type({&x});
    op.require(x.shape.rank() == 2 || x.shape.rank() == 4, "the tensor must have two or four dimensions");
    op.dropout(dropout);
  }
};
DP_ON_EVERY_BACKEND(DropoutApply);

// Computes a factor for each sample and channel, for dropout of whole channels or samples: y = kept ? 1/(1-p) : 0.
// dp::dropout_words determines which are kept. Its element is the number of the channel, or 0 for whole samples.
struct DropFactors {
  static constexpr const char* kName = "drop_factors";
  DP_ARGS(samples, inputs, y);  // samples: i64 (N). inputs: StepInputs
  TensorDesc y;                 // (N,C,1,1), row-major
  DropoutSpec dropout;
  bool whole_samples = false;

  void check(const OpCheck& op) const {
    op.one_type({&y});
    op.rank({&y}, 4);
    op.require(y.shape[2] == 1 && y.shape[3] == 1, "there is one factor for each sample and channel");
    op.dropout(dropout);
  }
};
DP_ON_EVERY_BACKEND(DropFactors);

// Copies elements to another layout or float type: between f32 and f64, or with mixed precision between the compute
// type and bf16 or f16. Padding of the destination becomes zero.
struct Reorder {
  static constexpr const char* kName = "reorder";
  DP_ARGS(src, dst);
  TensorDesc src, dst;

  void check(const OpCheck& op) const {
    op.require(src.shape == dst.shape, "the shapes differ");
    op.converts(src.type, dst.type);
  }
};
DP_ON_EVERY_BACKEND(Reorder);

// Sets bytes to zero.
struct Fill {
  static constexpr const char* kName = "fill";
  DP_ARGS(dst);
  std::size_t bytes = 0;

  void check(const OpCheck&) const {}
};
DP_ON_EVERY_BACKEND(Fill);

// y += x, element by element.
struct Accumulate {
  static constexpr const char* kName = "accumulate";
  DP_ARGS(x, y);
  std::int64_t count = 0;

  void check(const OpCheck& op) const { op.count(count); }
};
DP_ON_EVERY_BACKEND(Accumulate);

}  // namespace dp::kernels
