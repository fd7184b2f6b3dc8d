// Upsampling, zero padding, PReLU, softmax, transposed convolutions, and batch normalisation without weights or running
// statistics, against PyTorch in float64.
#include "golden/golden_cases.h"
#include "kernels/layer_calls.h"
#include "support/catch.h"
#include "support/training.h"

namespace {

using namespace dp;
using namespace dp::test;
using kernels::Channelwise;
using kernels::Resampling;

void check_decoder(OpRig& rig, const GoldenFile& golden, const std::string& prefix, const LayerResult& actual) {
  const double tolerance = golden_tolerance(rig.kind(), prefix);
  CHECK(relative_error(actual.y, golden.values(prefix + "y")) <= tolerance);
  CHECK(relative_error(actual.dx, golden.values(prefix + "dx")) <= tolerance);
  if (golden.has(prefix + "w")) CHECK(relative_error(actual.dw, golden.values(prefix + "dw")) <= tolerance);
}

Resampling resampling_of(const GoldenFile& golden, const std::string& prefix) {
  const std::vector<double> how = golden.values(prefix + "how").values;
  return {
      static_cast<Resampling::Mode>(how[0]), how[1] != 0, how[2], {static_cast<int>(how[3]), static_cast<int>(how[4])}};
}

// Trains the model for a step and evaluates it in the engine. Compares outputs, gradients of parameters and running
// statistics.
void check_model(DeviceKind kind, const GoldenFile& golden, const std::string& prefix, const Model& model) {
  const double tolerance = golden_tolerance(kind, prefix);
  const auto error = [&](const std::string& name, const Tensor& actual) {
    HostTensor values{golden.at(prefix + name).shape(), {}};
    REQUIRE(actual.numel() == values.shape.numel());
    for (std::int64_t i = 0; i < actual.numel(); ++i) values.values.push_back(value_at(actual, i));
    return relative_error(values, golden.values(prefix + name));
  };
  DataParallel net(model, kind == DeviceKind::reference ? on_reference() : on_cpus(1));
  std::vector<NamedTensor> initial;
  for (const auto& [name, tensor] : net.weights())
    if (golden.has(prefix + "initial." + name)) initial.emplace_back(name, golden.at(prefix + "initial." + name));
  net.set_weights(initial);
  const Tensor& y = net.forward(golden.at(prefix + "x"));
  CHECK(error("y", y) <= tolerance);
  Tensor dy(y.shape(), y.dtype());
  const auto given = golden.at(prefix + "dy").span<float>();
  for (std::size_t i = 0; i < given.size(); ++i)
    dy.dtype() == DType::f64 ? dy.span<double>()[i] = double{given[i]} : dy.span<float>()[i] = given[i];
  net.backward(dy);
  for (const auto& [name, gradient] : net.gradients()) {
    INFO(name);
    CHECK(error("gradient." + name, gradient) <= tolerance);
  }
  for (const auto& [name, tensor] : net.weights())
    if (golden.has(prefix + "after." + name)) CHECK(error("after." + name, tensor) <= tolerance);
  CHECK(error("prediction", net.predict(golden.at(prefix + "x"))) <= tolerance);
}

}  // namespace

TEST_CASE("upsampling and zero padding equal torch.nn.functional's, forward and backward") {
  const GoldenFile golden("decoder.safetensors");
  for (const auto& [group, cases] : {std::pair{"upsample", 13}, std::pair{"zero_pad2d", 3}})
    for_each_case(golden, group, cases, [&](OpRig& rig, const std::string& prefix) {
      const HostTensor x = golden.values(prefix + "x"), dy = golden.values(prefix + "dy");
      for (const Layouts layouts : kLayouts)
        check_decoder(rig, golden, prefix, resample(rig, x, dy, resampling_of(golden, prefix), layouts));
    });
}

TEST_CASE("PReLU and softmax equal torch.nn.functional's, forward and backward") {
  const GoldenFile golden("decoder.safetensors");
  for_each_case(golden, "prelu", 4, [&](OpRig& rig, const std::string& prefix) {
    const HostTensor x = golden.values(prefix + "x"), w = golden.values(prefix + "w"),
                     dy = golden.values(prefix + "dy");
    for (const kernels::Layout& layout : layouts_of(rig, x.shape))
      check_decoder(rig, golden, prefix, channelwise(rig, x, w, dy, Channelwise::prelu, layout, false));
  });
  for_each_case(golden, "softmax", 3, [&](OpRig& rig, const std::string& prefix) {
    const HostTensor x = golden.values(prefix + "x"), dy = golden.values(prefix + "dy");
    for (const kernels::Layout& layout : layouts_of(rig, x.shape))
      check_decoder(rig, golden, prefix, softmax(rig, x, dy, layout, false));
  });
}

TEST_CASE("conv_transpose2d equals torch.nn.ConvTranspose2d, and gives PyTorch's gradients to the layer before it") {
  const GoldenFile golden("decoder.safetensors");
  for_each_case(golden, "conv_transpose2d", 7, [&](DeviceKind kind, const std::string& prefix) {
    const std::vector<double> all = golden.values(prefix + "options").values;
    const auto pair = [&](std::size_t i) { return HW(static_cast<int>(all[2 * i]), static_cast<int>(all[2 * i + 1])); };
    const Shape input = golden.at(prefix + "x").shape().without_first();
    ModelBuilder m("decoder", input);
    const auto before = m.conv2d("before", m.input(), {.out_channels = input[0], .kernel = 1});
    const auto groups = static_cast<std::int64_t>(all[10]);
    const auto up = m.conv_transpose2d("up", before,
                                       {.out_channels = golden.at(prefix + "y").shape()[1],
                                        .kernel = pair(0),
                                        .stride = pair(1),
                                        .padding = pair(2),
                                        .output_padding = pair(3),
                                        .groups = groups,
                                        .bias = all[11] != 0,
                                        .dilation = pair(4)});
    check_model(kind, golden, prefix, m.build(m.flatten(up)));
  });
}

TEST_CASE("batch_norm2d without weights or running statistics equals PyTorch's, also in evaluation") {
  const GoldenFile golden("decoder.safetensors");
  for_each_case(golden, "batch_norm2d", 3, [&](DeviceKind kind, const std::string& prefix) {
    const int number = prefix[prefix.size() - 2] - '0';
    const BatchNorm2d options{.affine = number == 1, .track_running_stats = number == 0};
    ModelBuilder m("norms", {5, 4, 6});
    const auto x = m.conv2d("before", m.input(), {.out_channels = 5, .kernel = 1, .bias = false});
    const auto y = m.activation(m.batch_norm2d("bn1", x, options), Silu{});
    const auto z =
        m.batch_norm2d("bn2", m.conv2d("conv", y, {.out_channels = 5, .padding = 1, .bias = false}), options);
    check_model(kind, golden, prefix, m.build(m.flatten(m.add(z, x))));
  });
}

TEST_CASE("a network of upsampling, padding, transposed convolution, PReLU and softmax equals PyTorch's") {
  const GoldenFile golden("decoder.safetensors");
  for_each_case(golden, "decoder", 1, [&](DeviceKind kind, const std::string& prefix) {
    ModelBuilder m("decoder", {3, 5, 6});
    auto x = m.prelu("act1", m.conv2d("conv1", m.input(), {.out_channels = 8, .kernel = 3, .padding = 1}),
                     {.num_parameters = 8});
    x = m.upsample(x, {.scale_factor = 2, .mode = Upsample::Mode::bilinear});
    x = m.zero_pad2d(x, {.left = 1, .right = 0, .top = 2, .bottom = -1});
    x = m.conv_transpose2d("up2", x, {.out_channels = 6, .stride = 2, .padding = 1, .output_padding = 1});
    x = m.upsample(m.prelu("act2", x), {.size = HW{9, 11}});
    x = m.prelu("act3", m.flatten(m.softmax(x)), {.num_parameters = 594});
    check_model(kind, golden, prefix, m.build(x));
  });
}
