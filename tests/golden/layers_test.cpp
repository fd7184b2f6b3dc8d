// Every layer, the loss and the optimizer against PyTorch in float64.
#include "data/augment/mixing.h"
#include "golden/golden_cases.h"
#include "kernels/layer_calls.h"
#include "kernels/scalar_calls.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;

void check_layer(OpRig& rig, const GoldenFile& golden, const std::string& prefix, const LayerResult& actual) {
  CHECK(relative_error(actual.y, golden.values(prefix + "y")) <= golden_tolerance(rig.kind(), prefix));
  CHECK(relative_error(actual.dx, golden.values(prefix + "dx")) <= golden_tolerance(rig.kind(), prefix));
  if (!golden.has(prefix + "w")) return;
  CHECK(relative_error(actual.dw, golden.values(prefix + "dw")) <= golden_tolerance(rig.kind(), prefix));
  CHECK(relative_error(actual.db, golden.values(prefix + "db")) <= golden_tolerance(rig.kind(), prefix));
}

}  // namespace

TEST_CASE("conv2d equals torch.nn.functional.conv2d, forward and backward, also in groups and with any window") {
  for (const auto& [file, cases] : {std::pair{"layers.safetensors", 7}, std::pair{"windows.safetensors", 10}}) {
    const GoldenFile golden(file);
    for_each_case(golden, "conv2d", cases, [&](OpRig& rig, const std::string& prefix) {
      const HostTensor x = golden.values(prefix + "x"), w = golden.values(prefix + "w"),
                       b = golden.values(prefix + "b");
      const HostTensor dy = golden.values(prefix + "dy");
      for (const Layouts layouts : kLayouts)
        check_layer(rig, golden, prefix, conv2d(rig, x, w, &b, dy, window_of(golden, prefix), false, layouts));
    });
  }
}

TEST_CASE("linear equals torch.nn.functional.linear, forward and backward, also for flattened images") {
  const GoldenFile golden("layers.safetensors");
  for_each_case(golden, "linear", 3, [&](OpRig& rig, const std::string& prefix) {
    const HostTensor x = golden.values(prefix + "x"), w = golden.values(prefix + "w"), b = golden.values(prefix + "b");
    const HostTensor dy = golden.values(prefix + "dy");
    for (const Layouts layouts : kLayouts) check_layer(rig, golden, prefix, linear(rig, x, w, &b, dy, false, layouts));
  });
}

TEST_CASE("relu equals torch.nn.functional.relu, forward and backward, also at zero") {
  const GoldenFile golden("layers.safetensors");
  for_each_case(golden, "relu", 1, [&](OpRig& rig, const std::string& prefix) {
    const HostTensor x = golden.values(prefix + "x"), dy = golden.values(prefix + "dy");
    const kernels::Layout plain = rig.plain(x.shape);
    LayerResult result;
    result.y = relu_forward(rig, x, plain, false);
    result.dx = relu_backward(rig, dy, result.y, plain, false);
    check_layer(rig, golden, prefix, result);
  });
}

TEST_CASE("every activation function and its derivative equal PyTorch's") {
  const std::vector<std::pair<std::string, Function>> functions{{"relu6", Relu6{}},
                                                                {"leaky_relu", LeakyRelu{}},
                                                                {"leaky_relu_0.2", LeakyRelu{0.2f}},
                                                                {"elu", Elu{}},
                                                                {"elu_0.5", Elu{0.5f}},
                                                                {"sigmoid", Sigmoid{}},
                                                                {"hardsigmoid", HardSigmoid{}},
                                                                {"tanh", Tanh{}},
                                                                {"silu", Silu{}},
                                                                {"hardswish", HardSwish{}},
                                                                {"gelu", Gelu{}},
                                                                {"gelu_tanh", GeluTanh{}},
                                                                {"times_-0.3", Times{-0.3f}}};
  CHECK(functions.size() == std::variant_size_v<Function> + 2);
  const GoldenFile golden("functions.safetensors");
  const HostTensor x = golden.values("x"), dy = golden.values("dy");
  for (const auto& [name, function] : functions)
    for (const DeviceKind kind : tested_kinds()) {
      INFO(name << " on " << to_string(Device{kind, 0}));
      CHECK(name.starts_with(name_of(function)));
      OpRig rig(kind);
      const kernels::Layout plain = rig.plain(x.shape);
      const std::string group = "function." + name;
      CHECK(relative_error(function_forward(rig, x, function, plain, false), golden.values(name + ".y")) <=
            golden_tolerance(kind, group));
      CHECK(relative_error(function_backward(rig, dy, x, function, plain, false), golden.values(name + ".dx")) <=
            golden_tolerance(kind, group));
    }
}

TEST_CASE("max_pool2d equals torch.nn.functional.max_pool2d, forward and backward, with ties and padding") {
  const GoldenFile golden("layers.safetensors");
  for_each_case(golden, "max_pool2d", 4, [&](OpRig& rig, const std::string& prefix) {
    const HostTensor x = golden.values(prefix + "x"), dy = golden.values(prefix + "dy");
    for (const Layouts layouts : kLayouts)
      check_layer(rig, golden, prefix, max_pool2d(rig, x, dy, {.window = window_of(golden, prefix)}, {}, {}, layouts));
  });
}

TEST_CASE("pools with windows of any shape, dilated, in ceil mode and adaptive equal PyTorch's, forward and backward") {
  const GoldenFile golden("pools.safetensors");
  const auto check = [&](const char* group, int cases, auto pooled) {
    for_each_case(golden, group, cases, [&](OpRig& rig, const std::string& prefix) {
      const HostTensor x = golden.values(prefix + "x"), dy = golden.values(prefix + "dy");
      for (const Layouts layouts : kLayouts) check_layer(rig, golden, prefix, pooled(rig, prefix, x, dy, layouts));
    });
  };
  using Values = const HostTensor&;
  check("max_pool2d", 9, [&](OpRig& rig, const std::string& prefix, Values x, Values dy, Layouts layouts) {
    return max_pool2d(rig, x, dy, {.window = window_of(golden, prefix)}, {}, {}, layouts);
  });
  check("avg_pool2d", 2, [&](OpRig& rig, const std::string& prefix, Values x, Values dy, Layouts layouts) {
    const kernels::Window window = window_of(golden, prefix);
    return avg_pool2d(rig, x, dy, &window, layouts);
  });
  check("adaptive_avg_pool2d", 6, [&](OpRig& rig, const std::string&, Values x, Values dy, Layouts layouts) {
    return avg_pool2d(rig, x, dy, nullptr, layouts);
  });
}

TEST_CASE("the loss and its gradient equal torch.nn.functional.cross_entropy, with label smoothing") {
  const GoldenFile golden("layers.safetensors");
  for_each_case(golden, "cross_entropy", 4, [&](OpRig& rig, const std::string& prefix) {
    const HostTensor logits = golden.values(prefix + "logits");
    const std::span<const std::int32_t> labels = golden.at(prefix + "labels").span<std::int32_t>();
    const std::int64_t batch = logits.shape[0];  // a power of two: the factor 1/batch is exact
    const kernels::StepInputs inputs{.loss_scale = 1.0f / static_cast<float>(batch),
                                     .label_smoothing = golden.at(prefix + "smoothing").span<float>()[0]};
    const LossResult actual = softmax_cross_entropy(rig, logits, {labels.begin(), labels.end()}, inputs);
    const std::vector<double> top = golden.values(prefix + "top").values;
    CHECK(actual.results.loss_sum / static_cast<double>(batch) ==
          Approx(golden.values(prefix + "loss").values[0]).epsilon(golden_tolerance(rig.kind(), prefix)));
    CHECK(relative_error(actual.dlogits, golden.values(prefix + "dlogits")) <= golden_tolerance(rig.kind(), prefix));
    CHECK(static_cast<double>(actual.results.top1) == top[0]);
    CHECK(static_cast<double>(actual.results.top5) == top[1]);
  });
}

TEST_CASE("every loss of outputs and its gradient equal PyTorch's, and the focal loss torchvision's") {
  const std::vector<std::pair<std::string, OutputLoss>> losses{{"mse", MseLoss{}},
                                                               {"l1", L1Loss{}},
                                                               {"huber", HuberLoss{}},
                                                               {"huber_0.3", HuberLoss{0.3f}},
                                                               {"smooth_l1", SmoothL1Loss{}},
                                                               {"smooth_l1_0.3", SmoothL1Loss{0.3f}},
                                                               {"smooth_l1_0", SmoothL1Loss{0}},
                                                               {"bce_with_logits", BceWithLogitsLoss{}},
                                                               {"bce_with_logits_3", BceWithLogitsLoss{3}},
                                                               {"focal", FocalLoss{}},
                                                               {"focal_0.7_1.5", FocalLoss{0.7f, 1.5f}},
                                                               {"focal_-1_0", FocalLoss{-1, 0}},
                                                               {"soft_cross_entropy", SoftCrossEntropyLoss{}}};
  CHECK(losses.size() == std::variant_size_v<OutputLoss> + 6);
  const GoldenFile golden("losses.safetensors");
  const HostTensor outputs = golden.values("outputs");
  const std::int64_t batch = outputs.shape[0];  // a power of two: the factor 1/batch is exact
  for (const auto& [name, loss] : losses)
    for (const DeviceKind kind : tested_kinds()) {
      INFO(name << " on " << to_string(Device{kind, 0}));
      CHECK(name.starts_with(name_of(loss)));
      const bool shares = name.starts_with("bce") || name.starts_with("focal") || name.starts_with("soft");
      const HostTensor targets = golden.values(shares ? "shares" : "real");
      OpRig rig(kind);
      const LossResult actual =
          loss_of_outputs(rig, loss, outputs, targets, {.loss_scale = 1.0f / static_cast<float>(batch)});
      const double tolerance = golden_tolerance(kind, "loss." + name);
      CHECK(actual.results.loss_sum / static_cast<double>(batch) ==
            Approx(golden.values(name + ".loss").values[0]).epsilon(tolerance));
      CHECK(relative_error(actual.dlogits, golden.values(name + ".gradient")) <= tolerance);
    }
}

TEST_CASE("the targets of weighted classes and of mixed images give PyTorch's cross-entropy") {
  struct Case {
    const char* name;
    TargetOptions options;
    double own;  // the part of an image that stays
  };
  const std::vector<float> weights{0.5f, 2, 1, 0, 1.25f};
  const GoldenFile golden("losses.safetensors");
  const HostTensor outputs = golden.values("outputs");
  const std::int64_t batch = outputs.shape[0];
  const std::span<const std::int32_t> labels = golden.at("labels").span<std::int32_t>();
  for (const Case& c : {Case{"weighted", {.class_weights = weights}, 1},
                        Case{"weighted_smooth", {.class_weights = weights, .label_smoothing = 0.125f}, 1},
                        Case{"mixed", {.mixup_alpha = 1, .class_weights = weights, .label_smoothing = 0.125f}, 0.75}}) {
    INFO(c.name);
    double sum = 0;
    for (const std::int32_t label : labels) sum += static_cast<double>(weights[static_cast<std::size_t>(label)]);
    Tensor filled(outputs.shape);
    fill_targets({.own = c.own}, c.options, labels, c.options.mixes() ? 1 : static_cast<double>(batch) / sum, 5, 5,
                 filled.data<float>());
    const HostTensor targets{outputs.shape, {filled.data<float>(), filled.data<float>() + filled.numel()}};
    OpRig rig(DeviceKind::reference);
    const LossResult actual = loss_of_outputs(rig, SoftCrossEntropyLoss{}, outputs, targets,
                                              {.loss_scale = 1.0f / static_cast<float>(batch)});
    const std::string name = c.name;
    // The targets are float32.
    CHECK(actual.results.loss_sum / static_cast<double>(batch) ==
          Approx(golden.values(name + ".loss").values[0]).epsilon(1e-7));
    CHECK(relative_error(actual.dlogits, golden.values(name + ".gradient")) <= 1e-7);
  }
}

TEST_CASE("five updates equal torch.optim.SGD's with momentum, Nesterov and weight decay") {
  const GoldenFile golden("layers.safetensors");
  for_each_case(golden, "sgd", 6, [&](OpRig& rig, const std::string& prefix) {
    const std::span<const float> settings = golden.at(prefix + "settings").span<float>();
    const Sgd sgd{
        .lr = settings[0], .momentum = settings[1], .nesterov = settings[3] != 0, .weight_decay = settings[2]};
    HostTensor w = golden.values(prefix + "w"), momenta = zeros(w.shape);
    const HostTensor gradients = golden.values(prefix + "gradients"), trajectory = golden.values(prefix + "trajectory");
    const auto row = [&](const HostTensor& rows, std::int64_t step) {
      const auto begin = rows.values.begin() + step * w.shape[0];
      return HostTensor{w.shape, {begin, begin + w.shape[0]}};
    };
    for (std::int64_t step = 0; step < 5; ++step) {
      sgd_update(rig, w, row(gradients, step), sgd.momentum > 0 ? &momenta : nullptr, sgd, {});
      CHECK(relative_error(w, row(trajectory, step)) <= golden_tolerance(rig.kind(), prefix));
    }
    if (sgd.momentum > 0)
      CHECK(relative_error(momenta, golden.values(prefix + "momenta")) <= golden_tolerance(rig.kind(), prefix));
  });
}
