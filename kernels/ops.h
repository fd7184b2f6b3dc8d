// All operations of a device, as a closed set of descriptors. Context::make_op makes an Op from a descriptor by
// visiting OpDesc exhaustively, hence a backend that lacks an operation does not compile.
//
// Shapes: activations are (N,C,H,W) or (N,features), weights (O,I,kH,kW) or (O,I).
// Arguments: DP_ARGS names the pointers that Op::run takes (kernels/op_args.h). A comment says which may be null.
// Types: elements have the context's compute_type() unless stated otherwise. With mixed precision x, y, dy, dx and w
// have one 16-bit type, which their TensorDescs give. dw, b, db, and all batch normalisation data except activations,
// have the compute type. All arithmetic is in the compute type.
// Layouts: the backend chooses the layout of a TensorDesc that is any(); Op::tensors() returns the choice.
// Ops never read a destination before they write it, unless the descriptor says "adds" or "in place".
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/layout.h"
#include "kernels/update/update_rules.h"

namespace dp::kernels {

// Declares Args, an op's arguments in the order of Op::run: pointers (P = void*), or the operands of a plan.
#define DP_ARGS(...)    \
  template <typename P> \
  struct Args {         \
    P __VA_ARGS__;      \
  }

struct Window {  // of a convolution or a pool; square, with equal padding on all sides
  int kernel = 3;
  int stride = 1;
  int padding = 0;
};

// y = conv(x, w) + b, then max(0, y) if relu.
struct Conv2dForward {
  DP_ARGS(x, w, b, y);  // b: may be null
  TensorDesc x, w, y;
  Window window;
  bool bias = true;
  bool relu = false;
};
// dx = d(loss)/dx. dy is the gradient of y before any ReLU.
struct Conv2dBackwardData {
  DP_ARGS(dy, w, dx);
  TensorDesc dy, w, dx;
  Window window;
};
// dw = d(loss)/dw, db = sum of dy over N,H,W.
struct Conv2dBackwardWeights {
  DP_ARGS(x, dy, dw, db);  // db: may be null
  TensorDesc x, dy, dw;
  Window window;
  bool bias = true;
};

// y = x w^T + b, then max(0, y) if relu. x may be (N,C,H,W): it is flattened in C,H,W order, and w is (O, C*H*W).
struct LinearForward {
  DP_ARGS(x, w, b, y);  // b: may be null
  TensorDesc x, w, y;
  bool bias = true;
  bool relu = false;
};
struct LinearBackwardData {
  DP_ARGS(dy, w, dx);
  TensorDesc dy, w, dx;
};
struct LinearBackwardWeights {
  DP_ARGS(x, dy, dw, db);  // db: may be null
  TensorDesc x, dy, dw;
  bool bias = true;
};

// y = max(0, x); may run in place.
struct ReluForward {
  DP_ARGS(x, y);
  TensorDesc x;
};
// dx = y > 0 ? dy * scale : 0; may run in place on dy. All tensors have x's layout. If a dropout follows the ReLU, y is
// the dropout's result and `scale` its scale; dx is then the gradient through both.
struct ReluBackward {
  DP_ARGS(dy, y, dx);
  TensorDesc x;
  float scale = 1;
};

struct DropoutSpec {
  float p = 0.5f;
  std::uint32_t layer = 0;  // part of the random key: the layer's index in the model
};

// y = maxpool(x), then max(0, y) if relu, which equals a ReLU before the pool (docs/decisions/0004), then dropout if it
// is set and training. Padding cells are never the maximum. `mask` holds one byte per element of y for the backward
// pass: the window cell row*kernel+col of the first maximum in row-major order (kernel <= 15), or 255 if ReLU or
// dropout blocks the gradient. If training is false, mask is null and dropout is off.
// mask is u8, with y's shape and layout; samples is i64 (N).
struct MaxPool2dForward {
  DP_ARGS(x, y, mask, samples, inputs);  // samples, inputs (StepInputs): null without dropout
  TensorDesc x, y;
  Window window;
  bool relu = false;
  bool training = true;
  std::optional<DropoutSpec> dropout;
};
// dx is the gradient of x through the pool and its folded ReLU and dropout. It is zero where no gradient flows.
struct MaxPool2dBackward {
  DP_ARGS(dy, mask, dx);
  TensorDesc dy, dx;
  Window window;
  std::optional<DropoutSpec> dropout;  // for the scale 1/(1-p)
};

// y = mean over all kernel*kernel cells of the window; padding cells count as zero. `global`: the mean is over H and W,
// and `window` is ignored.
struct AvgPool2dForward {
  DP_ARGS(x, y);
  TensorDesc x, y;
  Window window;
  bool global = false;
};
struct AvgPool2dBackward {
  DP_ARGS(dy, dx);
  TensorDesc dy, dx;
  Window window;
  bool global = false;
};

// y = a + b, then max(0, y) if relu. All tensors have x's layout. May run in place on a.
struct AddForward {
  DP_ARGS(a, b, y);
  TensorDesc x;
  bool relu = false;
};

// Batch normalisation over N,H,W of each channel, split into several ops so that the statistics can cover one shard or
// several (docs/decisions/0013).
//
// Moments of one part of a batch are 1 + 2C doubles: the count, the mean of each channel, and each channel's sum of
// squared deviations from its mean. All are zero for an empty part. Stats are 1 + 2C doubles: the count, the mean of
// each channel, and each channel's 1/sqrt(biased variance + eps).
//
// Computes the moments of x; with `eps` also the stats of this part alone.
struct BatchNormMoments {
  DP_ARGS(x, moments, stats);  // stats: null without eps
  TensorDesc x;
  std::optional<double> eps{};
};
// Merges the moments of `parts` parts (contiguous, 1 + 2C doubles each) in order into stats, by the pairwise formula of
// Chan et al.
struct BatchNormMerge {
  DP_ARGS(moments, stats);
  std::int64_t channels = 0;
  int parts = 1;
  double eps = 1e-5;
};
// Updates the running mean and variance of several normalisations, each from the moments of `parts` parts, merged as
// above. r = (1 - momentum) * r + momentum * batch value. The batch variance is the unbiased one; it is 0 if the count
// is 1. Running mean and variance are C elements each of the compute type, updated in place. A channel stays unchanged
// if the count is 0, or if its mean or sum of squares is not finite.
struct BatchNormTrack {
  DP_ARGS(moments, running);
  struct Norm {
    std::int64_t channels = 0;
    double momentum = 0.1;
    std::int64_t moments = 0;             // offset in `moments`, in doubles
    std::int64_t mean = 0, variance = 0;  // offsets in `running`, in elements
  };
  std::vector<Norm> norms;
  int parts = 1;
};
// Stats from the running mean and variance, for evaluation. The count is 0.
struct BatchNormRunning {
  DP_ARGS(mean, variance, stats);
  std::int64_t channels = 0;
  double eps = 1e-5;
};
// Folds a normalisation by its running mean and variance into the convolution before it, for evaluation. For each
// output channel, with scale = weight / sqrt(variance + eps): folded_w = w * scale, folded_b = bias + (b - mean) *
// scale. folded_w has w's type and layout.
struct BatchNormFold {
  DP_ARGS(w, b, weight, bias, mean, variance, folded_w, folded_b);  // b: may be null
  TensorDesc w;
  double eps = 1e-5;
};
// y = (x - mean) * inv_std * weight + bias, plus the addend if `add`, then max(0, y) if relu. x, addend and y have x's
// layout.
struct BatchNormForward {
  DP_ARGS(x, stats, weight, bias, addend, y);  // addend: null without add
  TensorDesc x;
  bool relu = false;
  bool add = false;
};
// Computes dz, the gradient of the ReLU's input: dz = y > 0 ? dy + dy2 : 0; without relu dz = dy + dy2. A null dy2
// counts as zero. Also sums dz and dz * xhat over N,H,W, where xhat = (x - mean) * inv_std. `sums` is 2C doubles, first
// the sums of dz. dbias and dweight are the same sums in the compute type. dz is written unless it is null, and may
// alias dy or dy2. y is null without relu. All tensors have x's layout.
struct BatchNormBackwardSums {
  DP_ARGS(dy, dy2, x, y, stats, sums, dweight, dbias, dz);  // dy2, y, dz: may be null
  TensorDesc x;
  bool relu = false;
};
// dx = weight * inv_std * (dz - S1 / count - xhat * S2 / count). S1 and S2 are the sums of `parts` parts (2C doubles
// each), added in order. count is that of stats. `relu`: dz is dy, and the op computes dz from it and y as
// BatchNormBackwardSums does without dy2. May run in place on dz.
struct BatchNormBackward {
  DP_ARGS(dz, x, y, stats, weight, sums, dx);  // y: null without relu
  TensorDesc x;
  int parts = 1;
  bool relu = false;
};

// Batch normalisation fused with adjacent convolutions. Each op gives the result of the ops it names, run in sequence,
// with the same rounding to the activation type. Intermediate tensors need not be written to memory.
// engine/plan/norm_fusion.h describes where plans may use them (docs/decisions/0025).
//
// Conv2dForward of z, without bias and ReLU. If `moments`, then BatchNormMoments of y with `eps`. z is x or, if `norm`,
// the result of BatchNormForward with relu on x. stats, weight and bias are null without norm, moments without
// `moments`, y_stats without eps.
struct NormConv2dForward {
  DP_ARGS(x, stats, weight, bias, w, y, moments, y_stats);
  TensorDesc x, w, y;
  Window window;
  bool norm = false;
  bool moments = false;
  std::optional<double> eps{};
};
// Conv2dBackwardData into dx, the gradient of a batch normalisation's result y, then BatchNormBackwardSums of that
// normalisation. `add`: of dx + dy2. `relu`: the gradient passes only where y > 0. `renormalize`: y is null and is
// recomputed from x, as NormConv2dForward computes z. All tensors but dy and w have dx's layout. dz must not alias
// another argument. dy2 is null without add, y without relu and with renormalize, weight and bias without renormalize.
struct NormConv2dBackwardData {
  DP_ARGS(dy, w, dy2, x, y, stats, weight, bias, sums, dweight, dbias, dz);
  TensorDesc dy, w, dx;
  Window window;
  bool relu = false;
  bool add = false;
  bool renormalize = false;
};
// Conv2dBackwardWeights without bias, of z, which is recomputed from x as in NormConv2dForward.
struct NormConv2dBackwardWeights {
  DP_ARGS(x, stats, weight, bias, dy, dw);
  TensorDesc x, dy, dw;
  Window window;
};

// Layers fused with adjacent ops, for devices on which a launch costs as much as a small layer (Context::fuses,
// docs/decisions/0034). Each op gives the result of its members, run in sequence, with the same rounding to the
// activation type. The members specify the layouts of all tensors. A tensor that one member writes only for the next
// need not exist in memory. kernels/fused/fused_layers.h defines the result for every backend.

// `linear`, then DropoutApply in place on y.
struct LinearDropoutForward {
  DP_ARGS(x, w, b, y, samples, inputs);  // b: may be null
  LinearForward linear;
  DropoutSpec dropout;
};
// `conv`, then `pool` of its result (pool.x is conv.y). y is pool.y; the last three args are as in MaxPool2dForward.
struct Conv2dPoolForward {
  DP_ARGS(x, w, b, y, mask, samples, inputs);  // b: may be null
  Conv2dForward conv;
  MaxPool2dForward pool;
};
// `data`, then ReluBackward of dx, with the layer's input x as its y. x has dx's layout.
struct Conv2dReluBackwardData {
  DP_ARGS(dy, w, x, dx);
  Conv2dBackwardData data;
};
// `data`, then `pool`, the gradient of the max-pool before the layer (pool.dy is data.dx). dx is pool.dx.
struct LinearPoolBackwardData {
  DP_ARGS(dy, w, mask, dx);
  LinearBackwardData data;
  MaxPool2dBackward pool;
};
// `weights` and `data` of one layer, then ReluBackward of dx, with x as its y and `scale`.
struct LinearReluBackward {
  DP_ARGS(x, dy, w, dw, db, dx);  // db: may be null
  LinearBackwardWeights weights;
  LinearBackwardData data;
  float scale = 1;
};
// y = kept ? x/(1-p) : 0. dp::dropout_words determines which elements are kept; elements are counted in C,H,W order of
// the sample. The backward pass is the same op applied to dy. May run in place.
struct DropoutApply {
  DP_ARGS(x, y, samples, inputs);  // samples: i64 (N). inputs: StepInputs
  TensorDesc x;
  DropoutSpec dropout;
};

// Cross-entropy with label smoothing of each sample; dlogits = loss_scale * (softmax - target). Adds the loss and the
// counts of samples, top-1, top-5 and non-finite samples to StepResults. A label is in the top k if fewer than k
// classes rank before it: those with a greater logit, or an equal logit and a lower index. A label with a NaN logit is
// never in the top k. Losses are added in a fixed order in double. `scaled`: dlogits are also multiplied by
// LossScaler::scale. Logits and dlogits are (N,classes), row-major, of the compute type; labels are i32 (N). The others
// are StepInputs, StepResults and LossScaler.
struct SoftmaxCrossEntropy {
  DP_ARGS(logits, labels, inputs, dlogits, results, scaler);  // dlogits: may be null; scaler: null unless scaled
  std::int64_t batch = 0;
  std::int64_t classes = 0;
  bool scaled = false;
};
// `linear`, which computes the logits, then `loss`.
struct LinearLoss {
  DP_ARGS(x, w, b, logits, labels, inputs, dlogits, results, scaler);  // as in LinearForward and SoftmaxCrossEntropy
  LinearForward linear;
  SoftmaxCrossEntropy loss;
};

// Copies elements to another layout or float type: between f32 and f64, or with mixed precision between the compute
// type and bf16 or f16. Padding of the destination becomes zero.
struct Reorder {
  DP_ARGS(src, dst);
  TensorDesc src, dst;
};
struct Fill {  // Sets bytes to zero.
  DP_ARGS(dst);
  std::size_t bytes = 0;
};
struct Accumulate {  // y += x, element by element.
  DP_ARGS(x, y);
  std::int64_t count = 0;
};
// Moving average of weights: average += StepInputs::average_share * (x - average).
struct MovingAverage {
  DP_ARGS(x, average, inputs);  // inputs: StepInputs
  std::int64_t count = 0;
};

// The update of an optimizer on a range of the arenas, with clip and skip of StepResults. Sets grad_nonfinite if an
// updated weight is not finite. `copy` (bf16 or f16): also writes the new weights in that type to the arg copy. Updates
// weights and state in place. A state tensor is null if the rule has fewer, or needs none with these constants. groups:
// one byte per kGroupElements elements, an index into UpdateInputs::groups; null: all are 0. inputs: StepInputs.
// results: StepResults.
struct OptimizerUpdate {
  DP_ARGS(weights, gradients, first_state, second_state, groups, inputs, results, copy);
  std::int64_t count = 0;
  UpdateRule rule = UpdateRule::sgd;
  std::optional<DType> copy{};
};

// Sums of squares in double, one for each kNormBlock elements from the start of the range. A NaN or Inf element makes
// its partial sum non-finite. partials: ceil(count/kNormBlock) doubles.
inline constexpr std::int64_t kNormBlock = 1024;
struct GradNormPartials {
  DP_ARGS(x, partials);
  std::int64_t count = 0;
};
// Dynamic loss scaling as in PyTorch's GradScaler. The scale stays a finite normal number.
struct LossScaling {
  float growth = 2;      // factor after `interval` consecutive steps without overflow
  float backoff = 0.5f;  // factor after a step whose gradient is not finite
  std::uint32_t interval = 2000;
};
// Adds `blocks` partials in order. Sets grad_norm, clip = min(1, max_norm / (grad_norm + 1e-6)), skip and
// grad_nonfinite, and increments skipped_steps if the step is skipped. With `scaling` the partials are those of a
// gradient that is LossScaler::scale times too large. grad_norm and max_norm refer to the unscaled gradient. clip is
// divided by the scale, so that OptimizerUpdate unscales the gradient. A non-finite gradient always skips the step and
// does not set grad_nonfinite. The scale is then adapted as LossScaling describes.
struct GradNormFinish {
  DP_ARGS(partials, inputs, results, scaler);  // StepInputs, StepResults, LossScaler (null without scaling)
  std::int64_t blocks = 0;
  std::optional<LossScaling> scaling{};
};

// Makes a batch from a device-resident data set, as a loader does: x = (byte / 255 - mean) / deviation, each operation
// rounded to the compute type. With GatherInputs::augment the image is padded with black pixels, cropped to its
// original size at a random position, and flipped at random. Not part of plans: see engine/replica/device_images.h.
// samples: i64 (N), rows of the data set. inputs: GatherInputs.
struct GatherImages {
  DP_ARGS(samples, inputs, x);
  TensorDesc x;
};

using OpDesc = std::variant<Conv2dForward, Conv2dBackwardData, Conv2dBackwardWeights, LinearForward, LinearBackwardData,
                            LinearBackwardWeights, ReluForward, ReluBackward, MaxPool2dForward, MaxPool2dBackward,
                            AvgPool2dForward, AvgPool2dBackward, AddForward, BatchNormMoments, BatchNormMerge,
                            BatchNormTrack, BatchNormRunning, BatchNormFold, BatchNormForward, BatchNormBackwardSums,
                            BatchNormBackward, NormConv2dForward, NormConv2dBackwardData, NormConv2dBackwardWeights,
                            LinearDropoutForward, Conv2dPoolForward, Conv2dReluBackwardData, LinearPoolBackwardData,
                            LinearReluBackward, LinearLoss, DropoutApply, SoftmaxCrossEntropy, Reorder, Fill,
                            Accumulate, MovingAverage, OptimizerUpdate, GradNormPartials, GradNormFinish, GatherImages>;

#undef DP_ARGS

const char* name_of(const OpDesc& desc);  // for plans and errors, e.g. "conv2d_forward"

}  // namespace dp::kernels
