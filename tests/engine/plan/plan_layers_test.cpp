// Whole plans of a network with pools, dropout and linear layers on the reference device: every step, its arguments and
// their offsets in memory.
#include "engine/plan/plan_table.h"
#include "kernels/device/host/host_context.h"
#include "kernels/device/reference/reference_op.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::engine;
using namespace dp::test;
using kernels::NormFusion;

namespace {

Model layers() {
  ModelBuilder m("layers", Shape{2, 6, 6});
  auto x = m.relu(m.conv2d("conv1", m.input(), {.out_channels = 3, .kernel = 3}));
  x = m.max_pool2d(m.relu(m.conv2d("conv2", x, {.out_channels = 4, .kernel = 3, .padding = 1})));
  x = m.flatten(m.dropout("dropout1", x, 0.25f));
  x = m.dropout("dropout2", m.relu(m.linear("fc1", x, {.out_features = 8})), 0.5f);
  return m.build(m.linear("fc2", x, {.out_features = 3}));
}

// A reference device whose convolutions read and write their weights in other layouts in evaluations and in backward.
class OtherLayouts final : public kernels::HostContext {
 public:
  OtherLayouts() : HostContext({DeviceKind::reference, 0}, {}) {}
  DType compute_type() const override { return DType::f64; }
  kernels::Layout plain_layout(const Shape& shape, DType type) override {
    return kernels::reference::plain_layout(shape, type);
  }
  kernels::Layout with_type(const kernels::TensorDesc& tensor, DType type) override {
    return plain_layout(tensor.shape, type);
  }
  std::unique_ptr<kernels::Op> make_op(const kernels::OpDesc& desc) override {
    if (const auto* const copy = std::get_if<kernels::Reorder>(&desc))
      return std::make_unique<NeverRun>(std::vector{copy->src, copy->dst});
    std::unique_ptr<kernels::Op> op = kernels::reference::make_op(desc);
    std::vector<kernels::TensorDesc> tensors = op->tensors();
    const auto* const forward = std::get_if<kernels::Conv2dForward>(&desc);
    if (forward != nullptr && !forward->training) {
      tensors[1].layout.name = "evaluated";
    } else if (std::holds_alternative<kernels::Conv2dBackwardData>(desc)) {
      tensors[1].layout.name = "flipped";
    } else if (std::holds_alternative<kernels::Conv2dBackwardWeights>(desc)) {
      tensors[2].layout.name = "padded";
      tensors[2].layout.bytes += 64;
    } else {
      return op;
    }
    return std::make_unique<NeverRun>(std::move(tensors));
  }
};

Model convolutions() {
  ModelBuilder m("convolutions", Shape{2, 4, 4});
  auto x = m.conv2d("conv1", m.input(), {.out_channels = 3, .kernel = 3});
  x = m.conv2d("conv2", x, {.out_channels = 2, .kernel = 2, .bias = false});
  return m.build(m.linear("fc", m.flatten(x), {.out_features = 3}));
}

// The input is read by a convolution and by an addition.
Model middle_stage() {
  ModelBuilder m("middle_stage", Shape{2, 4, 4});
  const auto x = m.relu(m.add(m.conv2d("left", m.input(), {.out_channels = 2, .kernel = 1}), m.input()));
  const auto y = m.conv2d("right", x, {.out_channels = 2, .kernel = 3, .padding = 1, .bias = false});
  return m.build(m.avg_pool2d(m.add(y, x)));
}

}  // namespace

TEST_CASE("plan table: layers in separate steps, with a scaled loss") {
  CHECK(table_of(layers(), {.batch = 2, .scales_loss = true}, NormFusion::never) == R"(forward
 conv1+relu reorder: input act0
 conv1+relu: act0 val0 val512 act1152
 conv2: act1152 val640 val1536 act0
 relu+max_pool+dropout1: act0 act1920 act1024 samples step
 fc1+relu: act1920 val1664 val2688 act0
 dropout2: act0 act128 samples step
 fc2: act128 val2816 val3072 act256
loss
 loss: act256 labels step act320 results scale
backward
 fc2 backward_weights: act128 act320 grad2816 grad3072
 fc2 backward_data: act320 val2816 act128 ready 6
 dropout2 backward: act128 act128 samples step
 fc1+relu relu_backward: act128 act0 act128
 fc1+relu backward_weights: act1920 act128 grad1664 grad2688
 fc1+relu backward_data: act128 val1664 act1920 ready 4
 relu+max_pool+dropout1 backward: act1920 act1024 act0
 conv2 backward_weights: act1152 act0 grad640 grad1536
 conv2 backward_data: act0 val640 act1920 ready 2
 conv1+relu relu_backward: act1920 act1152 act1920
 conv1+relu backward_weights reorder: input act0
 conv1+relu backward_weights: act0 act1920 grad0 grad512 ready 0
arena 2688, workspace 0, folded 0, reorders 2, logits act256, gradient act320
)");
}

TEST_CASE("plan table: fused layers that add to earlier gradients, with a scaled loss") {
  const PlanOptions options{.batch = 2, .accumulate = true, .scales_loss = true, .joins_loss = true};
  CHECK(table_of(layers(), options, NormFusion::always) == R"(forward
 conv1+relu reorder: input act0
 conv1+relu: act0 val0 val512 act1920
 conv2+relu+max_pool+dropout1: act1920 val640 val1536 act1024 act1472 samples step
 fc1+relu+dropout2: act1024 val1664 val2688 act192 samples step
loss
 fc2+loss: act192 val2816 val3072 act0 labels step act320 results scale
backward
 fc2 backward: act192 act320 val2816 act0 act384 act1280
 fc2 weight accumulate: act0 grad2816
 fc2 bias accumulate: act384 grad3072 ready 6
 fc1+relu backward_weights: act1024 act1280 act0 act1408
 fc1+relu weight accumulate: act0 grad1664
 fc1+relu bias accumulate: act1408 grad2688
 fc1+relu backward_data: act1280 val1664 act1472 act0 ready 4
 conv2 backward_weights: act1920 act0 act1024 act2688
 conv2 weight accumulate: act1024 grad640
 conv2 bias accumulate: act2688 grad1536
 conv2 backward_data: act0 val640 act1920 act1152 ready 2
 conv1+relu backward_weights reorder: input act0
 conv1+relu backward_weights: act0 act1152 act1920 act2368
 conv1+relu weight accumulate: act1920 grad0
 conv1+relu bias accumulate: act2368 grad512 ready 0
arena 2752, workspace 1024, folded 0, reorders 2, logits act0, gradient act320
)");
}

TEST_CASE("plan table: frozen layers before the first trained one have no backward pass") {
  const PlanOptions options{.batch = 2, .frozen = {true, true, true, true, false, false, false, false}};
  CHECK(table_of(layers(), options, NormFusion::always) == R"(forward
 conv1+relu reorder: input act0
 conv1+relu: act0 val0 val512 act1152
 conv2+relu+max_pool+dropout1: act1152 val640 val1536 act0 act256 samples step
 fc1+relu+dropout2: act0 val1664 val2688 act256 samples step
 fc2: act256 val2816 val3072 act384
loss
 loss: act384 labels step act512 results -
backward
 fc2 backward: act256 act512 val2816 grad2816 grad3072 act384 ready 6
 fc1+relu backward_weights: act0 act384 grad1664 grad2688 ready 0
arena 1920, workspace 1024, folded 0, reorders 1, logits act384, gradient act512
)");
}

TEST_CASE("plan table: a frozen layer behind a trained one has only the gradient of its input") {
  const PlanOptions options{.batch = 2, .frozen = {false, false, true, true, true, true, true, false}};
  CHECK(table_of(layers(), options, NormFusion::always) == R"(forward
 conv1+relu reorder: input act0
 conv1+relu: act0 val0 val512 act1152
 conv2+relu+max_pool+dropout1: act1152 val640 val1536 act0 act1920 samples step
 fc1+relu+dropout2: act0 val1664 val2688 act256 samples step
 fc2: act256 val2816 val3072 act0
loss
 loss: act0 labels step act64 results -
backward
 fc2 backward: act256 act64 val2816 grad2816 grad3072 act1024 ready 6
 fc1+relu backward_data: act1024 val1664 act1920 act0 ready 4
 conv2 backward_data: act0 val640 act1152 act1920 ready 2
 conv1+relu backward_weights reorder: input act0
 conv1+relu backward_weights: act0 act1920 grad0 grad512 ready 0
arena 2688, workspace 1024, folded 0, reorders 2, logits act0, gradient act64
)");
}

TEST_CASE("plan table: an evaluation stores no masks and no gradients, and its loss is not scaled") {
  const PlanOptions options{.batch = 2, .training = false, .scales_loss = true};
  CHECK(table_of(layers(), options, NormFusion::never) == R"(forward
 conv1+relu reorder: input act0
 conv1+relu: act0 val0 val512 act1152
 conv2: act1152 val640 val1536 act0
 relu+max_pool: act0 act1024 - - -
 fc1+relu: act1024 val1664 val2688 act0
 fc2: act0 val2816 val3072 act128
loss
 loss: act128 labels step - results -
arena 1920, workspace 0, folded 0, reorders 1, logits act128, gradient -
)");
}

TEST_CASE("plan table: mixed precision converts images, logits and their gradient once") {
  kernels::ContextOptions device;
  device.activations = DType::bf16;
  const auto context = kernels::backend(DeviceKind::reference).open({DeviceKind::reference, 0}, device);
  CHECK(table_of(layers(), {.batch = 2}, *context) == R"(forward
 conv1+relu reorder: input act0
 conv1+relu: act0 low0 val512 act2176
 conv2: act2176 low640 val1536 act1152
 relu+max_pool+dropout1: act1152 act2944 act3200 samples step
 fc1+relu: act2944 low1664 val2688 act1152
 dropout2: act1152 act1280 samples step
 fc2: act1280 low2816 val3072 act1408
 logits reorder: act1408 act1472
loss
 loss: act1472 labels step act1408 results -
backward
 fc2 backward reorder: act1408 act1472
 fc2 backward_weights: act1280 act1472 grad2816 grad3072
 fc2 backward_data: act1472 low2816 act1280 ready 6
 dropout2 backward: act1280 act1280 samples step
 fc1+relu relu_backward: act1280 act1152 act1280
 fc1+relu backward_weights: act2944 act1280 grad1664 grad2688
 fc1+relu backward_data: act1280 low1664 act2944 ready 4
 relu+max_pool+dropout1 backward: act2944 act3200 act1152
 conv2 backward_weights: act2176 act1152 grad640 grad1536
 conv2 backward_data: act1152 low640 act2944 ready 2
 conv1+relu relu_backward: act2944 act2176 act2944
 conv1+relu backward_weights: act0 act2944 grad0 grad512 ready 0
arena 3712, workspace 0, folded 0, reorders 3, logits act1472, gradient act1408
)");
}

TEST_CASE("plan table: weights and their gradients in other layouts are reordered") {
  OtherLayouts context;
  CHECK(table_of(convolutions(), {.batch = 2}, context) == R"(forward
 conv1 reorder: input act0
 conv1: act0 val0 val512 act512
 conv2: act512 val640 - act128
 fc: act128 val896 val1024 act0
loss
 loss: act0 labels step act64 results -
backward
 fc backward_weights: act128 act64 grad896 grad1024
 fc backward_data: act64 val896 act256 ready 3
 conv2 backward_weights: act512 act256 act0 -
 conv2 weight gradient reorder: act0 grad640
 conv2 backward_data weight reorder: val640 act0
 conv2 backward_data: act256 act0 act1024 ready 2
 conv1 backward_weights reorder: input act0
 conv1 backward_weights: act0 act1024 act512 grad512
 conv1 weight gradient reorder: act512 grad0 ready 0
arena 1216, workspace 0, folded 0, reorders 5, logits act0, gradient act64
)");
  CHECK(table_of(convolutions(), {.batch = 2, .accumulate = true}, context) == R"(forward
 conv1 reorder: input act0
 conv1: act0 val0 val512 act512
 conv2: act512 val640 - act128
 fc: act128 val896 val1024 act0
loss
 loss: act0 labels step act64 results -
backward
 fc backward_weights: act128 act64 act0 act192
 fc weight accumulate: act0 grad896
 fc bias accumulate: act192 grad1024
 fc backward_data: act64 val896 act448 ready 3
 conv2 backward_weights: act512 act448 act0 -
 conv2 weight gradient reorder: act0 act256
 conv2 weight accumulate: act256 grad640
 conv2 backward_data weight reorder: val640 act0
 conv2 backward_data: act448 act0 act1024 ready 2
 conv1 backward_weights reorder: input act0
 conv1 backward_weights: act0 act1024 act512 act1216
 conv1 weight gradient reorder: act512 act0
 conv1 weight accumulate: act0 grad0
 conv1 bias accumulate: act1216 grad512 ready 0
arena 1280, workspace 0, folded 0, reorders 5, logits act0, gradient act64
)");
}

TEST_CASE("plan table: a middle stage of a pipeline, with its weight gradients split off") {
  const auto context = kernels::backend(DeviceKind::reference).open({DeviceKind::reference, 0}, {});
  const Shape input{2, 2, 4, 4};
  const PlanOptions options{.batch = 2,
                            .input = kernels::TensorDesc{input, DType::f64, context->plain_layout(input, DType::f64)},
                            .last = false,
                            .split_backward = true};
  CHECK(table_of(middle_stage(), options, *context) == R"(forward
 left: act0 val0 val128 act512
 add+relu: act512 act0 act1024
 right: act1024 val256 - act512
 add: act512 act1024 act1536
 avg_pool: act1536 act2048
backward
 avg_pool backward: act1536 act512
 right backward_data: act512 val256 act1536
 add+relu backward sum: act1536 act512 act1536
 add+relu relu_backward: act1536 act1024 act1536
 left backward_data: act1536 val0 act2048
 input backward sum: act2048 act1536 act2048
weights
 right backward_weights: act1024 act512 grad256 - ready 2
 left backward_weights: act0 act1536 grad0 grad128 ready 0
arena 2560, workspace 0, folded 0, reorders 0, logits -, gradient -
input act0, input_grad act2048, output act2048, output_grad act1536
)");
}

TEST_CASE("plans: an evaluation reorders weights once, not in each call") {
  OtherLayouts context;
  CHECK(table_of(convolutions(), {.batch = 2, .training = false}, context) == R"(fold
 conv1 weight reorder: val0 folded0
 conv2 weight reorder: val640 folded448
forward
 conv1 reorder: input act0
 conv1: act0 folded0 val512 act512
 conv2: act512 folded448 - act64
 fc: act64 val896 val1024 act0
loss
 loss: act0 labels step - results -
arena 704, workspace 0, folded 640, reorders 1, logits act0, gradient -
)");
}
