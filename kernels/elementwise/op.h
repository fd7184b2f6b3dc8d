// Ops that treat each element alike, and copies.
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
