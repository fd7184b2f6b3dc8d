// Every backward op of the reference against central differences of its forward, in float64.
#include <functional>

#include "kernels/differences.h"
#include "kernels/layer_calls.h"
#include "kernels/scalar_calls.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;
using kernels::Window;

constexpr double kTolerance = 1e-9;  // for functions that are linear within the step

using Layer = std::function<LayerResult(const HostTensor& x, const HostTensor& w, const HostTensor& b,
                                        const HostTensor& dy, bool relu)>;

// Gradients of dot(direction, layer(x, w, b)).
void check_layer(OpRig& rig, const Layer& layer, const Shape& x_shape, const Shape& w_shape, const Shape& y_shape,
                 bool relu) {
  Random random(21, RandomUse::synthetic);
  HostTensor x, w, b;
  const HostTensor direction = random_tensor(y_shape, random);
  do {  // away from ReLU's kink: a step changes an output by less than 2 steps
    x = random_tensor(x_shape, random), w = random_tensor(w_shape, random), b = random_tensor({w_shape[0]}, random);
  } while (relu && distance_from_zero(layer(x, w, b, direction, false).y) < 4 * kDifferenceStep);

  const HostTensor y = layer(x, w, b, direction, relu).y;
  const HostTensor dy = relu ? relu_backward(rig, direction, y, rig.plain(y_shape), false) : direction;
  const LayerResult gradients = layer(x, w, b, dy, relu);
  const auto loss = [&] { return dot(layer(x, w, b, direction, relu).y, direction); };
  CHECK(relative_error(gradients.dx, difference_quotients(x, loss)) <= kTolerance);
  CHECK(relative_error(gradients.dw, difference_quotients(w, loss)) <= kTolerance);
  CHECK(relative_error(gradients.db, difference_quotients(b, loss)) <= kTolerance);
}

}  // namespace

TEST_CASE("gradients of convolutions equal difference quotients") {
  OpRig rig(DeviceKind::reference);
  for (const Window& window :
       {Window{3, 1, 0}, Window{3, 1, 1}, Window{3, 2, 1}, Window{1, 2, 0}, Window{5, 1, 1}, Window{2, 2, 1}})
    for (const bool relu : {false, true}) {
      INFO("kernel " << window.kernel.h << " stride " << window.stride.h << " padding " << window.padding.h << " relu "
                     << relu);
      const Shape x{2, 2, 5, 4}, w{2, 2, window.kernel.h, window.kernel.h};
      const Layer layer = [&](const HostTensor& xs, const HostTensor& ws, const HostTensor& b, const HostTensor& dy,
                              bool with_relu) {
        return conv2d(rig, xs, ws, &b, dy, window, with_relu, Layouts::plain);
      };
      check_layer(rig, layer, x, w, window_output(x, 2, window), relu);
    }
  const Window window{{2, 3}, {2, 1}, {1, 2}, {1, 2}, {1, 0}};
  const Layer layer = [&](const HostTensor& xs, const HostTensor& ws, const HostTensor& b, const HostTensor& dy,
                          bool with_relu) { return conv2d(rig, xs, ws, &b, dy, window, with_relu, Layouts::plain); };
  for (const std::int64_t groups : {1, 2, 4}) {
    INFO(groups << " groups");
    check_layer(rig, layer, {2, 4, 5, 4}, {8, 4 / groups, 2, 3}, window_output({2, 4, 5, 4}, 8, window), true);
  }
}

TEST_CASE("gradients of products equal difference quotients, for a factor of each element, channel or pixel") {
  OpRig rig(DeviceKind::reference);
  Random random(23, RandomUse::synthetic);
  const Shape shape{2, 3, 4, 5};
  HostTensor x = random_tensor(shape, random);
  const HostTensor dy = random_tensor(shape, random);
  for (const Shape& factors : {shape, Shape{2, 3, 1, 1}, Shape{2, 1, 4, 5}}) {
    INFO(to_string(factors));
    HostTensor s = random_tensor(factors, random);
    const auto products = [&] { return multiply(rig, x, s, dy, rig.plain(shape), false); };
    const Products gradients = products();
    const auto loss = [&] { return dot(products().y, dy); };
    CHECK(relative_error(gradients.dx, difference_quotients(x, loss)) <= kTolerance);
    CHECK(relative_error(gradients.ds, difference_quotients(s, loss)) <= kTolerance);
  }
}

TEST_CASE("gradients of linear layers equal difference quotients, for flat and (N, C, H, W) inputs") {
  OpRig rig(DeviceKind::reference);
  const Layer layer = [&](const HostTensor& x, const HostTensor& w, const HostTensor& b, const HostTensor& dy,
                          bool relu) { return linear(rig, x, w, &b, dy, relu, Layouts::plain); };
  for (const bool relu : {false, true}) {
    check_layer(rig, layer, {3, 7}, {4, 7}, {3, 4}, relu);
    check_layer(rig, layer, {2, 3, 2, 3}, {5, 18}, {2, 5}, relu);
  }
}

TEST_CASE("gradients of max-pools equal difference quotients, also with fused ReLU and dropout") {
  OpRig rig(DeviceKind::reference);
  Random random(22, RandomUse::synthetic);
  const std::vector<std::int64_t> samples{5, 9};
  const kernels::StepInputs inputs{.seed = 3, .step = 8};
  for (const Window& window : {Window{2, 2, 0}, Window{3, 2, 1}, Window{3, 1, 1}, Window{2, 2, 1},
                               Window{{2, 3}, 2, {0, 1}}, Window{2, 2, 1, 2}, Window{3, 2, 0, 1, {0, 1}}})
    for (const bool relu : {false, true})
      for (const bool drops : {false, true}) {
        INFO("kernel " << window.kernel.h << " stride " << window.stride.h << " relu " << relu << " dropout " << drops);
        const PoolOptions options{.window = window,
                                  .relu = relu,
                                  .dropout = drops ? std::optional(kernels::DropoutSpec{0.5f, 1}) : std::nullopt};
        HostTensor x = distinct_tensor({2, 2, 5, 6}, random);
        const HostTensor dy = random_tensor(window_output(x.shape, 2, window), random);
        const auto run = [&] { return max_pool2d(rig, x, dy, options, samples, inputs, Layouts::plain); };
        const HostTensor dx = run().dx;
        CHECK(relative_error(dx, difference_quotients(x, [&] { return dot(run().y, dy); })) <= kTolerance);
      }
}

TEST_CASE("gradients of ReLU and dropout equal difference quotients") {
  OpRig rig(DeviceKind::reference);
  Random random(23, RandomUse::synthetic);
  HostTensor x = distinct_tensor({3, 2, 3, 5}, random);
  const HostTensor dy = random_tensor(x.shape, random);
  const kernels::Layout plain = rig.plain(x.shape);
  const auto relu = [&] { return relu_forward(rig, x, plain, false); };
  CHECK(relative_error(relu_backward(rig, dy, relu(), plain, false),
                       difference_quotients(x, [&] { return dot(relu(), dy); })) <= kTolerance);

  const auto drop = [&](const HostTensor& t) {
    return dropout(rig, t, {0.4f, 2}, {1, 2, 3}, {.seed = 9}, plain, false);
  };
  CHECK(relative_error(drop(dy), difference_quotients(x, [&] { return dot(drop(x), dy); })) <= kTolerance);
}

TEST_CASE("the derivative of every function equals its difference quotient") {
  OpRig rig(DeviceKind::reference);
  Random random(26, RandomUse::synthetic);
  HostTensor x = distinct_tensor({3, 2, 3, 5}, random);
  for (double& value : x.values) value = 6 * value + 0.01;  // not at -6, -3, 0, 3 or 6
  const HostTensor dy = random_tensor(x.shape, random);
  const kernels::Layout plain = rig.plain(x.shape);
  for (const Function function :
       {Function(Relu6{}), Function(LeakyRelu{0.2f}), Function(Elu{1.5f}), Function(Sigmoid{}), Function(HardSigmoid{}),
        Function(Tanh{}), Function(Silu{}), Function(HardSwish{}), Function(Gelu{}), Function(GeluTanh{}),
        Function(Times{-0.3f})}) {
    INFO(name_of(function));
    const auto loss = [&] { return dot(function_forward(rig, x, function, plain, false), dy); };
    CHECK(relative_error(function_backward(rig, dy, x, function, plain, false), difference_quotients(x, loss)) <= 1e-8);
  }
}

TEST_CASE("the gradient of soft cross-entropy equals its difference quotient, also for targets of another sum than 1") {
  OpRig rig(DeviceKind::reference);
  Random random(27, RandomUse::synthetic);
  HostTensor logits = random_tensor({4, 6}, random), targets = random_tensor({4, 6}, random);
  for (double& value : logits.values) value *= 3;
  for (double& value : targets.values) value = std::abs(value);
  const kernels::StepInputs inputs{.loss_scale = 0.25f};
  const HostTensor gradient = loss_of_outputs(rig, SoftCrossEntropyLoss{}, logits, targets, inputs).dlogits;
  const auto loss = [&] {
    return 0.25 * loss_of_outputs(rig, SoftCrossEntropyLoss{}, logits, targets, inputs, false).results.loss_sum;
  };
  CHECK(relative_error(gradient, difference_quotients(logits, loss)) <= 1e-7);
}

TEST_CASE("gradients of upsampling, zero padding, PReLU and softmax equal difference quotients") {
  using kernels::Channelwise;
  using kernels::Resampling;
  OpRig rig(DeviceKind::reference);
  Random random(27, RandomUse::synthetic);
  const auto check = [&](HostTensor x, const Shape& y, double tolerance, const auto& layer) {
    const HostTensor dy = random_tensor(y, random);
    const HostTensor dx = layer(x, dy).dx;
    CHECK(relative_error(dx, difference_quotients(x, [&] { return dot(layer(x, dy).y, dy); })) <= tolerance);
  };
  for (const Resampling& how :
       {Resampling{Resampling::Mode::nearest}, Resampling{Resampling::Mode::bilinear},
        Resampling{Resampling::Mode::bilinear, true}, Resampling{Resampling::Mode::shifted, false, 0, {1, -2}}})
    for (const HW& size : {HW{8, 10}, HW{3, 7}})
      check(random_tensor({2, 2, 4, 5}, random), {2, 2, size.h, size.w}, kTolerance,
            [&](const HostTensor& x, const HostTensor& dy) { return resample(rig, x, dy, how, Layouts::plain); });

  const Shape shape{2, 3, 4, 5};
  const kernels::Layout plain = rig.plain(shape);
  for (const std::int64_t numbers : {1, 3})
    for (const Channelwise function : {Channelwise::add, Channelwise::prelu}) {
      HostTensor x = distinct_tensor(shape, random), w = random_tensor({numbers}, random);
      const HostTensor dy = random_tensor(shape, random);
      const auto run = [&] { return channelwise(rig, x, w, dy, function, plain, false); };
      const LayerResult gradients = run();
      const auto loss = [&] { return dot(run().y, dy); };
      CHECK(relative_error(gradients.dx, difference_quotients(x, loss)) <= kTolerance);
      CHECK(relative_error(gradients.dw, difference_quotients(w, loss)) <= kTolerance);
    }
  check(random_tensor(shape, random), shape, 1e-8,
        [&](const HostTensor& x, const HostTensor& dy) { return softmax(rig, x, dy, plain, false); });
}

TEST_CASE("the gradient of softmax cross-entropy equals its difference quotient, with label smoothing too") {
  OpRig rig(DeviceKind::reference);
  Random random(24, RandomUse::synthetic);
  for (const float smoothing : {0.0f, 0.1f, 1.0f})
    for (const std::int64_t classes : {2, 5, 10}) {
      HostTensor logits = random_tensor({4, classes}, random);
      for (double& value : logits.values) value *= 3;
      const std::vector<std::int32_t> labels{0, 1, static_cast<std::int32_t>(classes - 1), 1};
      const kernels::StepInputs inputs{.loss_scale = 0.25f, .label_smoothing = smoothing};
      const HostTensor gradient = softmax_cross_entropy(rig, logits, labels, inputs).dlogits;
      const auto loss = [&] {
        return 0.25 * softmax_cross_entropy(rig, logits, labels, inputs, false).results.loss_sum;
      };
      // Not linear: the error is the squared step times the third derivative (1e-8), plus rounding.
      CHECK(relative_error(gradient, difference_quotients(logits, loss)) <= 1e-7);
    }
}
