// Every operation a device must have, as a closed set of descriptors. A backend turns a descriptor into an Op
// with Context::make_op by visiting OpDesc exhaustively: one that lacks an operation does not compile.
//
// Activations are (N,C,H,W) or (N,features); weights (O,I,kH,kW) or (O,I). "Args" lists the pointers Op::run
// takes, in order; an arg marked "or null" may be nullptr. Element type is the context's compute_type() unless
// said otherwise; with mixed precision x, y, dy, dx and w are of one 16-bit type, as their TensorDescs say, while dw, b, db, and all of
// batch normalisation that is no activation, are of the compute type, in which all arithmetic is done. A TensorDesc with an `any` layout is
// the backend's to choose; Op::tensors() tells what it chose. Ops never read a destination before writing it, unless the descriptor says
// "adds" or "in place".
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

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
// dx = y > 0 ? dy * scale : 0; may run in place on dy. Args: dy, y, dx. All in x's layout. With the scale of a dropout behind the ReLU, and
// y what that left, this is the gradient of both.
struct ReluBackward {
  TensorDesc x;
  float scale = 1;
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

// y = mean of the window over all its kernel*kernel cells, padding cells counted as zero; `global`: over all of H and W, and
// `window` is ignored. Args: x, y.
struct AvgPool2dForward {
  TensorDesc x, y;
  Window window;
  bool global = false;
};
struct AvgPool2dBackward {  // Args: dy, dx.
  TensorDesc dy, dx;
  Window window;
  bool global = false;
};

// y = a + b, then max(0, y) when relu. All in x's layout; may run in place on a. Args: a, b, y.
struct AddForward {
  TensorDesc x;
  bool relu = false;
};

// Batch normalisation over N,H,W of each channel, in pieces, so that the statistics may be those of one shard or of several.
//
// Moments of one part of a batch: 1 + 2C doubles: count, then each channel's mean, then each channel's sum of squared
// deviations from that mean. All zero for an empty part. `Stats`: 1 + 2C doubles: count, each channel's mean, each channel's
// 1/sqrt(biased variance + eps).
// With `eps` also the stats of this part alone. Args: x, moments, stats or null (null without eps).
struct BatchNormMoments {
  TensorDesc x;
  std::optional<double> eps{};
};
// Merges the moments of `parts` parts (consecutive, 1 + 2C doubles each) in their order, as Chan et al. do for pairs, into stats.
// Args: moments, stats.
struct BatchNormMerge {
  std::int64_t channels = 0;
  int parts = 1;
  double eps = 1e-5;
};
// Updates the running values of several normalisations from the moments of `parts` parts each, merged as above.
// r = (1 - momentum) * r + momentum * batch value; the variance is the unbiased one (a single value: 0/0 is taken as 0). Running
// mean and variance are C elements of the compute type, updated in place; a channel stays as it is when the count is 0 or its mean or
// squares are not finite. Args: moments, running values.
struct BatchNormTrack {
  struct Norm {
    std::int64_t channels = 0;
    double momentum = 0.1;
    std::int64_t moments = 0;             // doubles from the first argument
    std::int64_t mean = 0, variance = 0;  // elements from the second argument
  };
  std::vector<Norm> norms;
  int parts = 1;
};
// Stats from running values, for evaluation; the count is 0. Args: running mean, running variance, stats.
struct BatchNormRunning {
  std::int64_t channels = 0;
  double eps = 1e-5;
};
// y = (x - mean) * inv_std * weight + bias, plus the addend when `add`, then max(0, y) when relu. x, addend and y have x's
// layout. Args: x, stats, weight, bias, addend or null, y.
struct BatchNormForward {
  TensorDesc x;
  bool relu = false;
  bool add = false;
};
// The gradient behind the ReLU, dz = y > 0 ? dy + dy2 : 0 (without relu: dy + dy2; dy2 null: dy), and the sums over N,H,W
// of dz and of dz * xhat, xhat = (x - mean) * inv_std: sums = 2C doubles, first those of dz. dweight and dbias are the same
// sums in the compute type. dz is written where it is not null; it may be dy's or dy2's memory. y is null without relu.
// All tensors have x's layout.
// Args: dy, dy2 or null, x, y or null, stats, sums, dweight, dbias, dz or null.
struct BatchNormBackwardSums {
  TensorDesc x;
  bool relu = false;
};
// dx = weight * inv_std * (dz - S1 / count - xhat * S2 / count), S1 and S2 the sums of `parts` parts (2C doubles each)
// added in their order, count that of stats. `relu`: dz is not given, but dy with y, as in BatchNormBackwardSums without dy2.
// May run in place on dz. Args: dz or dy, x, y or null, stats, weight, sums, dx.
struct BatchNormBackward {
  TensorDesc x;
  int parts = 1;
  bool relu = false;
};

// Batch normalisation fused with the convolutions beside it: each computes what the ops it names compute one after another, with the
// same roundings to activations' type, and may keep what is between them out of memory. Where and when plans use them:
// engine/plan/norm_fusion.h.
//
// Conv2dForward without bias and ReLU of z, then BatchNormMoments of y with `eps` when `moments`. z is x, or when `norm` max(0, x
// normalised), as BatchNormForward with relu makes it. Args: x, stats, weight, bias (null without norm), w, y, moments or null, stats
// of y (null without eps).
struct NormConv2dForward {
  TensorDesc x, w, y;
  Window window;
  bool norm = false;
  bool moments = false;
  std::optional<double> eps{};
};
// Conv2dBackwardData into dx, the gradient of a batch normalisation's result, then its BatchNormBackwardSums: with `add` of dx + dy2, with
// `relu` only where the result y is positive. With `renormalize` y is not given but made again from x, as NormConv2dForward makes z.
// All but dy and w have dx's layout. dz does not lie where another argument does.
// Args: dy, w, dy2 or null, x, y or null, stats, weight, bias (null without renormalize), sums, dweight, dbias, dz.
struct NormConv2dBackwardData {
  TensorDesc dy, w, dx;
  Window window;
  bool relu = false;
  bool add = false;
  bool renormalize = false;
};
// Conv2dBackwardWeights without bias, of z as NormConv2dForward makes it of x. Args: x, stats, weight, bias, dy, dw.
struct NormConv2dBackwardWeights {
  TensorDesc x, dy, dw;
  Window window;
};

// Layers fused with what stands beside them, for devices on which a launch costs as much as a small layer (Context::fuses): each
// computes what its members compute one after another, with the same roundings to activations' type. Members name the layouts of all
// tensors; what only one member writes for the next need not exist in memory. Meaning for every backend: kernels/fused_layers.h.

// `linear`, then DropoutApply in place on y. Args: x, w, b or null, y, samples (i64, N), StepInputs.
struct LinearDropoutForward {
  LinearForward linear;
  DropoutSpec dropout;
};
// `conv`, then the pool of its result: pool.x is conv.y. Args: x, w, b or null, y (pool.y), mask, samples, StepInputs, the last three as
// MaxPool2dForward has them.
struct Conv2dPoolForward {
  Conv2dForward conv;
  MaxPool2dForward pool;
};
// `data`, then ReluBackward of dx by the layer's input x, which has dx's layout. Args: dy, w, x, dx.
struct Conv2dReluBackwardData {
  Conv2dBackwardData data;
};
// `data`, then the gradient of the pool whose result the layer read: pool.dy is data.dx. Args: dy, w, mask, dx (pool.dx).
struct LinearPoolBackwardData {
  LinearBackwardData data;
  MaxPool2dBackward pool;
};
// Both gradients of a layer, then ReluBackward of dx by x with `scale`. Args: x, dy, w, dw, db or null, dx.
struct LinearReluBackward {
  LinearBackwardWeights weights;
  LinearBackwardData data;
  float scale = 1;
};
// y = kept ? x/(1-p) : 0, kept as dp::dropout_words says (element order C,H,W of the sample). Applied to dy it is its own gradient.
// May run in place. Args: x, y, samples (i64, N), StepInputs.
struct DropoutApply {
  TensorDesc x;
  DropoutSpec dropout;
};

// Per sample: loss = cross-entropy with label smoothing; dlogits = loss_scale * (softmax - target); adds loss, counts, top-1,
// top-5 and non-finite samples to StepResults. A label is in the top k when fewer than k logits are greater (ties: lower
// class index first). A NaN logit is never right. Samples are summed in a fixed order, in double. `scaled`: dlogits are multiplied by
// LossScaler::scale, too. Logits and dlogits are of the compute type.
// Args: logits (N,classes row-major), labels (i32, N), StepInputs, dlogits (or null), StepResults; when scaled LossScaler.
struct SoftmaxCrossEntropy {
  std::int64_t batch = 0;
  std::int64_t classes = 0;
  bool scaled = false;
};
// `linear`, whose result are logits, then their loss. Args: x, w, b or null, logits (of the compute type), labels, StepInputs, dlogits or
// null, StepResults, LossScaler when scaled.
struct LinearLoss {
  LinearForward linear;
  SoftmaxCrossEntropy loss;
};

// Same elements, another layout or float type: f32 and f64, or with mixed precision the compute type and bf16 or f16. Padding of the
// destination becomes zero. Args: src, dst.
struct Reorder {
  TensorDesc src, dst;
};
struct Fill {  // zero bytes. Args: dst.
  std::size_t bytes = 0;
};
struct Accumulate {  // y += x, element by element. Args: x, y.
  std::int64_t count = 0;
};
// average += (1 - decay) * (x - average), the moving average of weights. Args: x, average.
struct MovingAverage {
  std::int64_t count = 0;
  double decay = 0.999;
};

// The update of dp::Sgd on a range of the arenas, with clip and skip of StepResults. Sets grad_nonfinite when an updated
// weight is not finite. With `copy` bf16 or f16 the new weights are written to `copy` as well, in that type.
// Args: weights, gradients, momenta (or null when momentum is 0), StepInputs, StepResults; with a copy type: copy. Adds to weights and
// momenta in place.
struct SgdUpdate {
  std::int64_t count = 0;
  std::optional<DType> copy{};
};

// Partial sums of squares in double: one for each kNormBlock elements from the start of the range.
// A NaN or Inf element makes its partial non-finite. Args: x, partials (double, ceil(count/kNormBlock)).
inline constexpr std::int64_t kNormBlock = 1024;
struct GradNormPartials {
  std::int64_t count = 0;
};
// How the factor of a loss adapts, as PyTorch's GradScaler does it. It stays a finite normal number.
struct LossScaling {
  float growth = 2;      // factor after `interval` steps in a row without overflow
  float backoff = 0.5f;  // factor after a step whose gradient is not finite
  std::uint32_t interval = 2000;
};
// Adds `blocks` partials in order; sets grad_norm, clip = min(1, max_norm / (norm + 1e-6)), skip and grad_nonfinite,
// and counts a skip in skipped_steps.
// With `scaling` the partials are of a gradient that is LossScaler::scale times too large: grad_norm and max_norm mean the gradient
// without it, clip is divided by it, so that the update needs to know nothing; one that is not finite is skipped always and sets no
// grad_nonfinite; and the scale is adapted, as LossScaling says.
// Args: partials, StepInputs, StepResults; with scaling LossScaler.
struct GradNormFinish {
  std::int64_t blocks = 0;
  std::optional<LossScaling> scaling{};
};

// A batch from a dataset that lies on the device, as a loader makes it: x = (byte / 255 - mean) / deviation, each step rounded to
// float32; where GatherInputs says so, of an image that is padded with black pixels, cropped to its size at a random place and flipped by
// chance. Not part of plans: see engine/replica/device_images.h.
// Args: samples (i64, N: rows of the dataset), GatherInputs, x.
struct GatherImages {
  TensorDesc x;
};

using OpDesc = std::variant<Conv2dForward, Conv2dBackwardData, Conv2dBackwardWeights, LinearForward, LinearBackwardData,
                            LinearBackwardWeights, ReluForward, ReluBackward, MaxPool2dForward, MaxPool2dBackward,
                            AvgPool2dForward, AvgPool2dBackward, AddForward, BatchNormMoments, BatchNormMerge,
                            BatchNormTrack, BatchNormRunning, BatchNormForward, BatchNormBackwardSums,
                            BatchNormBackward, NormConv2dForward, NormConv2dBackwardData, NormConv2dBackwardWeights,
                            LinearDropoutForward, Conv2dPoolForward, Conv2dReluBackwardData, LinearPoolBackwardData,
                            LinearReluBackward, LinearLoss, DropoutApply, SoftmaxCrossEntropy, Reorder, Fill,
                            Accumulate, MovingAverage, SgdUpdate, GradNormPartials, GradNormFinish, GatherImages>;

const char* name_of(const OpDesc& desc);  // "conv2d_forward", for plans and errors

}  // namespace dp::kernels
