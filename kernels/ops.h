// Every operation a device must have, as a closed set of descriptors. A backend turns a descriptor into an Op
// with Context::make_op by visiting OpDesc exhaustively: one that lacks an operation does not compile.
//
// Activations are (N,C,H,W) or (N,features); weights (O,I,kH,kW) or (O,I). "Args" lists the pointers Op::run
// takes, in order; an arg marked "or null" may be nullptr. Element type is the context's compute_type() unless
// said otherwise. A TensorDesc with an `any` layout is the backend's to choose; Op::tensors() tells what it chose.
// Ops never read a destination before writing it, unless the descriptor says "adds" or "in place".
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "kernels/layout.h"

namespace dp::kernels {

struct Window {  // of a convolution or a pool; square, symmetric
  int kernel = 3;
  int stride = 1;
  int padding = 0;
};

// y = x * w + b, then max(0, y) when relu. Args: x, w, b or null, y.
struct Conv2dForward {
  TensorDesc x, w, y;
  Window window;
  bool bias = true;
  bool relu = false;
};
// dx = d(loss)/dx from dy, the gradient of y before any ReLU. Args: dy, w, dx.
struct Conv2dBackwardData {
  TensorDesc dy, w, dx;
  Window window;
};
// dw = d(loss)/dw, db = sum of dy over N,H,W. Args: x, dy, dw, db or null.
struct Conv2dBackwardWeights {
  TensorDesc x, dy, dw;
  Window window;
  bool bias = true;
};

// y = x w^T + b, then max(0, y) when relu. x may be (N,C,H,W): it is flattened in C,H,W order, w stays
// (O, C*H*W) in meaning. Args: x, w, b or null, y.
struct LinearForward {
  TensorDesc x, w, y;
  bool bias = true;
  bool relu = false;
};
struct LinearBackwardData {  // Args: dy, w, dx.
  TensorDesc dy, w, dx;
};
struct LinearBackwardWeights {  // Args: x, dy, dw, db or null.
  TensorDesc x, dy, dw;
  bool bias = true;
};

// y = max(0, x); may run in place. Args: x, y.
struct ReluForward {
  TensorDesc x;
};
// dx = y > 0 ? dy : 0; may run in place on dy. Args: dy, y, dx. All in x's layout.
struct ReluBackward {
  TensorDesc x;
};

struct DropoutSpec {
  float p = 0.5f;
  std::uint32_t layer = 0;  // part of the random key: the layer's index in the model
};

// y = maxpool(x); with relu y = max(0, y) (the same as ReLU before the pool); then dropout when set and
// training. Padding cells never win. `mask` tells backward what to do with each element of y: one byte, the window cell
// row*kernel+col of the first maximum in row-major order (kernel <= 15), or 255 where ReLU or dropout stopped the gradient.
// It is null and dropout is off when training is false.
// Args: x, y, mask (u8, y's shape and layout) or null, samples (i64, N; null without dropout), StepInputs (null without dropout).
struct MaxPool2dForward {
  TensorDesc x, y;
  Window window;
  bool relu = false;
  bool training = true;
  std::optional<DropoutSpec> dropout;
};
// dx (x's shape, zero where no gradient goes): the gradient of what was pooled, before the ReLU that was folded in.
// Args: dy, mask, dx.
struct MaxPool2dBackward {
  TensorDesc dy, dx;
  Window window;
  std::optional<DropoutSpec> dropout;  // its scale
};

// y = kept ? x/(1-p) : 0, kept as dp::dropout_words says (element order C,H,W of the sample). Applied to dy it is its own gradient.
// May run in place. Args: x, y, samples (i64, N), StepInputs.
struct DropoutApply {
  TensorDesc x;
  DropoutSpec dropout;
};

// Per sample: loss = cross-entropy with label smoothing; dlogits = loss_scale * (softmax - target); adds loss, counts, top-1,
// top-5 and non-finite samples to StepResults. A label is in the top k when fewer than k logits are greater (ties: lower
// class index first). A NaN logit is never right. Samples are summed in order, in double.
// Args: logits (N,classes row-major), labels (i32, N), StepInputs, dlogits (or null), StepResults.
struct SoftmaxCrossEntropy {
  std::int64_t batch = 0;
  std::int64_t classes = 0;
};

// Same elements, another layout or float type (f32, f64). Padding of the destination becomes zero. Args: src, dst.
struct Reorder {
  TensorDesc src, dst;
};
struct Fill {  // zero bytes. Args: dst.
  std::size_t bytes = 0;
};
struct Accumulate {  // y += x, element by element. Args: x, y.
  std::int64_t count = 0;
};

// The update of dp::Sgd on a range of the arenas, with clip and skip of StepResults. Sets grad_nonfinite when an updated
// weight is not finite.
// Args: weights, gradients, momenta (or null when momentum is 0), StepInputs, StepResults. Adds to weights and momenta in place.
struct SgdUpdate {
  std::int64_t count = 0;
};

// Partial sums of squares in double: one for each kNormBlock elements from the start of the range.
// A NaN or Inf element makes its partial non-finite. Args: x, partials (double, ceil(count/kNormBlock)).
inline constexpr std::int64_t kNormBlock = 1024;
struct GradNormPartials {
  std::int64_t count = 0;
};
// Adds `blocks` partials in order; sets grad_norm, clip = min(1, max_norm / (norm + 1e-6)), skip and grad_nonfinite,
// and counts a skip in skipped_steps.
// Args: partials, StepInputs, StepResults.
struct GradNormFinish {
  std::int64_t blocks = 0;
};

using OpDesc =
    std::variant<Conv2dForward, Conv2dBackwardData, Conv2dBackwardWeights, LinearForward, LinearBackwardData,
                 LinearBackwardWeights, ReluForward, ReluBackward, MaxPool2dForward, MaxPool2dBackward, DropoutApply,
                 SoftmaxCrossEntropy, Reorder, Fill, Accumulate, SgdUpdate, GradNormPartials, GradNormFinish>;

const char* name_of(const OpDesc& desc);  // "conv2d_forward", for plans and errors

}  // namespace dp::kernels
