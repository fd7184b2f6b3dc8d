// What the model builder records of each layer, and what it rejects.
#include "dp/model.h"

#include <cmath>

#include "dp/error.h"
#include "dp/models.h"
#include "support/catch.h"

namespace {

using namespace dp;
using Node = ModelBuilder::Node;

void check_parameter(const ParameterSpec& actual, const ParameterSpec& expected) {
  INFO(expected.name);
  CHECK(actual.name == expected.name);
  CHECK(actual.shape == expected.shape);
  CHECK(actual.layer == expected.layer);
  CHECK(actual.init.kind == expected.init.kind);
  CHECK(actual.init.value == Approx(expected.init.value).epsilon(1e-6));
}

std::vector<std::string> parameter_names(const Model& model) {
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : model.parameters()) names.push_back(parameter.name);
  return names;
}

// The message of the error that the call of a new builder causes.
template <typename Call>
std::string refusal(const Call& call, const Shape& input = {2, 5, 9}) {
  try {
    ModelBuilder m("bad", input);
    call(m);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a model records the name, the inputs, the shape and the key of each layer") {
  ModelBuilder m("net", {2, 9, 13});
  const Node conv = m.conv2d("c", m.input(), {.out_channels = 4, .kernel = 3, .stride = 2, .padding = 1});
  const Node norm = m.batch_norm2d("n", conv);
  const Node relu = m.relu(norm);
  const Node sum = m.add(relu, conv);
  const Node largest = m.max_pool2d(sum, {.kernel = 3, .stride = 2, .padding = 1});
  const Node mean = m.avg_pool2d(largest, {.kernel = 2, .stride = 1});
  const Node dropout = m.dropout("d", mean, 0.25f);
  const Node flat = m.flatten(dropout);
  const Model model = m.build(m.linear("l", flat, {.out_features = 3}));
  struct {
    const char* name;
    std::vector<int> inputs;
    Shape output;
  } const expected[] = {{"input", {}, {2, 9, 13}},     {"c", {0}, {4, 5, 7}},
                        {"n", {1}, {4, 5, 7}},         {"layer3", {2}, {4, 5, 7}},
                        {"layer4", {3, 1}, {4, 5, 7}}, {"layer5", {4}, {4, 3, 4}},
                        {"layer6", {5}, {4, 2, 3}},    {"d", {6}, {4, 2, 3}},
                        {"layer8", {7}, {24}},         {"l", {8}, {3}}};
  REQUIRE(model.layers().size() == std::size(expected));
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    const Layer& layer = model.layers()[i];
    INFO(expected[i].name);
    CHECK(layer.name == expected[i].name);
    CHECK(layer.inputs == expected[i].inputs);
    CHECK(layer.output == expected[i].output);
    CHECK(std::holds_alternative<Input>(layer.kind) == (i == 0));
    CHECK(layer.key == static_cast<int>(i));
  }
  CHECK(model.name() == "net");
  CHECK(model.input() == Shape{2, 9, 13});
  CHECK(model.output() == Shape{3});
  CHECK(model.parameter_count() == 4 * 2 * 9 + 4 + 4 + 4 + 3 * 24 + 3);
  CHECK(std::get<Dropout>(model.layers()[7].kind).p == 0.25f);
}

TEST_CASE("a model records the shape, the layer and the initial values of each parameter and buffer") {
  ModelBuilder m("net", {3, 6, 6});
  Node x = m.conv2d("a", m.input(), {.out_channels = 8, .kernel = 5});
  x = m.conv2d("b", x, {.out_channels = 4, .kernel = 1, .bias = false, .init = ConvInit::kaiming_normal_fan_in});
  x = m.conv2d("c", x, {.out_channels = 2, .kernel = 1, .init = ConvInit::kaiming_normal_fan_out});
  x = m.batch_norm2d("n", x);
  const Conv2d torch_bias{.out_channels = 2, .kernel = 1, .init = ConvInit::kaiming_normal_fan_out, .torch_bias = true};
  x = m.conv2d("t", x, torch_bias);
  x = m.linear("l", m.flatten(m.global_avg_pool2d(x)), {.out_features = 7});
  const Model model = m.build(m.linear("k", x, {.out_features = 5, .bias = false}));
  const float a = 1 / std::sqrt(75.0f), l = 1 / std::sqrt(2.0f), k = 1 / std::sqrt(7.0f);
  const ParameterSpec expected[] = {
      {"a.weight", {8, 3, 5, 5}, 1, {InitKind::uniform, a}},   {"a.bias", {8}, 1, {InitKind::uniform, a}},
      {"b.weight", {4, 8, 1, 1}, 2, {InitKind::normal, 0.5f}},  // by fan_in: sqrt(2 / 8)
      {"c.weight", {2, 4, 1, 1}, 3, {InitKind::normal, 1}},    {"c.bias", {2}, 3, {InitKind::constant, 0}},
      {"n.weight", {2}, 4, {InitKind::constant, 1}},           {"n.bias", {2}, 4, {InitKind::constant, 0}},
      {"t.weight", {2, 2, 1, 1}, 5, {InitKind::normal, 1}},    {"t.bias", {2}, 5, {InitKind::uniform, l}},
      {"l.weight", {7, 2}, 8, {InitKind::uniform, l}},         {"l.bias", {7}, 8, {InitKind::uniform, l}},
      {"k.weight", {5, 7}, 9, {InitKind::uniform, k}}};
  REQUIRE(model.parameters().size() == std::size(expected));
  for (std::size_t i = 0; i < std::size(expected); ++i) check_parameter(model.parameters()[i], expected[i]);
  const BufferSpec buffers[] = {{"n.running_mean", {2}, DType::f32, 4, BufferKind::running_mean},
                                {"n.running_var", {2}, DType::f32, 4, BufferKind::running_var},
                                {"n.num_batches_tracked", {}, DType::i64, 4, BufferKind::num_batches_tracked}};
  REQUIRE(model.buffers().size() == std::size(buffers));
  for (std::size_t i = 0; i < std::size(buffers); ++i) {
    const BufferSpec& buffer = model.buffers()[i];
    INFO(buffers[i].name);
    CHECK(buffer.name == buffers[i].name);
    CHECK(buffer.shape == buffers[i].shape);
    CHECK(buffer.type == buffers[i].type);
    CHECK(buffer.layer == buffers[i].layer);
    CHECK(buffer.kind == buffers[i].kind);
  }
}

TEST_CASE("a convolution's sizes, groups and padding 'same' give the shapes of PyTorch") {
  ModelBuilder m("net", {6, 9, 12});
  // torch.nn.Conv2d(6, 8, (3, 5), stride=(2, 1), padding=(1, 4), dilation=(1, 2), groups=2)
  Node x = m.conv2d(
      "a", m.input(),
      {.out_channels = 8, .kernel = {3, 5}, .stride = {2, 1}, .padding = {1, 4}, .dilation = {1, 2}, .groups = 2});
  x = m.conv2d("b", x, {.out_channels = 8, .kernel = {2, 4}, .padding = kSamePadding, .dilation = {1, 3}, .groups = 8});
  const Model model = m.build(x);
  CHECK(model.layers()[1].output == Shape{8, 5, 12});
  CHECK(model.layers()[2].output == Shape{8, 5, 12});
  CHECK(model.parameters()[0].shape == Shape{8, 3, 3, 5});
  CHECK(model.parameters()[0].init.value == 1 / std::sqrt(45.0f));  // fan_in counts the channels of a group
  CHECK(model.parameters()[2].shape == Shape{8, 1, 2, 4});
  const Padding& padding = std::get<Conv2d>(model.layers()[2].kind).padding;  // 1 row and 9 columns in all
  CHECK((padding.h == 0 && padding.w == 4));
  CHECK(padding.more_behind == HW{1, 1});
}

TEST_CASE("invalid convolutions and normalisations are rejected with the name of the layer") {
  const auto conv = [](const Conv2d& options, const Shape& input = {2, 5, 9}) {
    return refusal([&](ModelBuilder& m) { m.conv2d("c", m.input(), options); }, input);
  };
  const std::string positive = "layer 'c': kernel and stride must be positive; padding must not be negative";
  CHECK(conv({.out_channels = 1, .kernel = 5}) == "accepted");
  CHECK(conv({.out_channels = 1, .kernel = 6}) == "layer 'c': a window of 6 does not fit an input of 5 with padding 0");
  CHECK(conv({.out_channels = 1, .kernel = 7, .padding = 1}) == "accepted");
  CHECK(conv({.out_channels = 1, .kernel = 8, .padding = 1}) ==
        "layer 'c': a window of 8 does not fit an input of 5 with padding 1");
  CHECK(conv({.out_channels = 1, .kernel = 6}, {1, 9, 5}) ==
        "layer 'c': a window of 6 does not fit an input of 5 with padding 0");
  CHECK(conv({.out_channels = 1, .kernel = 1}) == "accepted");
  CHECK(conv({.out_channels = 1, .kernel = 0}) == positive);
  CHECK(conv({.out_channels = 1, .stride = 0}) == positive);
  CHECK(conv({.out_channels = 1, .padding = -1}) == positive);
  CHECK(conv({.out_channels = 1, .dilation = {1, 0}}) == "layer 'c': dilation must be positive");
  CHECK(conv({.out_channels = 1, .dilation = 3}) ==
        "layer 'c': a window of 7 does not fit an input of 5 with padding 0");
  CHECK(conv({.out_channels = 1, .kernel = {3, 9}}) == "accepted");
  CHECK(conv({.out_channels = 4, .groups = 2}) == "accepted");
  for (const std::int64_t groups : {0, 3, 4})
    CHECK(conv({.out_channels = 4, .groups = groups}) ==
          "layer 'c': " + std::to_string(groups) + " groups do not divide 2 input and 4 output channels");
  CHECK(conv({.out_channels = 1, .stride = {1, 2}, .padding = kSamePadding}) ==
        "layer 'c': padding 'same' requires a stride of 1");
  CHECK(conv({.out_channels = 0}) == "layer 'c': out_channels must be positive");
  CHECK(conv({.out_channels = 1}, {7}) == "layer 'c': a convolution requires an input of (C, H, W), not (7,)");
  const auto norm = [](const BatchNorm2d& options, const Shape& input = {2, 5, 9}) {
    return refusal([&](ModelBuilder& m) { m.batch_norm2d("n", m.input(), options); }, input);
  };
  CHECK(norm({}, {7}) == "layer 'n': batch normalisation requires an input of (C, H, W), not (7,)");
  CHECK(norm({.eps = 0}) == "layer 'n': eps must be positive");
  CHECK(norm({.eps = std::nan("")}) == "layer 'n': eps must be positive");
  for (const double momentum : {0.0, 1.0}) CHECK(norm({.momentum = momentum}) == "accepted");
  for (const double momentum : {-0.001, 1.001, std::nan("")})
    CHECK(norm({.momentum = momentum}) == "layer 'n': momentum must be in [0, 1]");
  const auto group = [](const GroupNorm& options, const Shape& input = {4, 5, 9}) {
    return refusal([&](ModelBuilder& m) { m.group_norm("n", m.input(), options); }, input);
  };
  CHECK(group({}, {7}) == "layer 'n': group normalisation requires an input of (C, H, W), not (7,)");
  CHECK(group({.eps = 0}) == "layer 'n': eps must be positive");
  for (const std::int64_t groups : {1, 2, 4}) CHECK(group({.groups = groups}) == "accepted");
  for (const std::int64_t groups : {0, -1, 3, 8})
    CHECK(group({.groups = groups}) == "layer 'n': " + std::to_string(groups) + " groups do not divide 4 channels");
  CHECK(group({.groups = 2}, {4, 1, 1}) == "accepted");
  CHECK(group({.groups = 4}, {4, 1, 1}) == "layer 'n': a group of one value has no variance");
  const auto instance = [](const Shape& input) {
    return refusal([&](ModelBuilder& m) { m.instance_norm2d("n", m.input()); }, input);
  };
  CHECK(instance({7}) == "layer 'n': instance normalisation requires an input of (C, H, W), not (7,)");
  CHECK(instance({3, 1, 1}) == "layer 'n': a group of one value has no variance");
}

TEST_CASE("layers on the pixels have PyTorch's parameters, and others are rejected") {
  ModelBuilder m("pixels", Shape{6, 4, 4});
  auto x = m.layer_norm("norm", m.layer_norm("plain", m.input(), {.affine = false}), {.eps = 1e-6});
  x = m.pointwise_linear("a", x, {.out_features = 8});
  x = m.pointwise_linear("b", x, {.out_features = 4, .bias = false, .init = Init{InitKind::normal, 0.02f}});
  x = m.scale("gamma", m.channel_shuffle(x, 2), 0.25f);
  const Model model = m.build(m.conv2d("c", x, {.out_channels = 3, .init = ConvInit::normal_002}));
  const float a = 1 / std::sqrt(6.0f);
  const ParameterSpec expected[] = {
      {"norm.weight", {6}, 2, {InitKind::constant, 1}},         {"norm.bias", {6}, 2, {InitKind::constant, 0}},
      {"a.weight", {8, 6}, 3, {InitKind::uniform, a}},          {"a.bias", {8}, 3, {InitKind::uniform, a}},
      {"b.weight", {4, 8}, 4, {InitKind::normal, 0.02f}},       {"gamma", {4, 1, 1}, 6, {InitKind::constant, 0.25f}},
      {"c.weight", {3, 4, 3, 3}, 7, {InitKind::normal, 0.02f}}, {"c.bias", {3}, 7, {InitKind::constant, 0}}};
  REQUIRE(model.parameters().size() == std::size(expected));
  for (std::size_t i = 0; i < std::size(expected); ++i) check_parameter(model.parameters()[i], expected[i]);
  CHECK(model.output() == Shape{3, 2, 2});

  using Append = std::function<void(ModelBuilder&)>;
  const auto refused = [](const Append& append, const Shape& input = {4, 5, 9}) { return refusal(append, input); };
  const auto norm = [](const LayerNorm& options) {
    return [=](ModelBuilder& b) { b.layer_norm("n", b.input(), options); };
  };
  CHECK(refused(norm({}), {7}) == "layer 'n': layer normalisation requires an input of (C, H, W), not (7,)");
  CHECK(refused(norm({}), {1, 5, 9}) == "layer 'n': a pixel of one value has no variance");
  CHECK(refused(norm({.eps = 0})) == "layer 'n': eps must be positive");
  const auto point = [](std::int64_t features) {
    return [=](ModelBuilder& b) { b.pointwise_linear("p", b.input(), {.out_features = features}); };
  };
  CHECK(refused(point(3)) == "accepted");
  CHECK(refused(point(0)) == "layer 'p': out_features must be positive");
  CHECK(refused(point(3), {7}) == "layer 'p': requires an input of (C, H, W), not (7,)");
  CHECK(refused([](ModelBuilder& b) { b.scale("s", b.input()); }, {7}) ==
        "layer 's': requires an input of (C, H, W), not (7,)");
  const auto shuffle = [](std::int64_t groups) {
    return [=](ModelBuilder& b) { b.channel_shuffle(b.input(), groups); };
  };
  for (const std::int64_t groups : {1, 2, 4}) CHECK(refused(shuffle(groups)) == "accepted");
  for (const std::int64_t groups : {0, 3, 8})
    CHECK(refused(shuffle(groups)) ==
          "layer 'channel_shuffle': " + std::to_string(groups) + " groups do not divide 4 channels");
  CHECK(refused(shuffle(1), {7}) == "layer 'channel_shuffle': requires an input of (C, H, W), not (7,)");
}

TEST_CASE("a reshape keeps the number of values, and one size may follow from the others") {
  const auto reshaped = [](const std::vector<std::int64_t>& sizes, const Shape& input = {4, 5, 6}) {
    ModelBuilder m("reshaped", input);
    return m.build(m.reshape(m.input(), sizes)).output();
  };
  CHECK(reshaped({8, 5, 3}) == Shape{8, 5, 3});
  CHECK(reshaped({2, -1, 4}) == Shape{2, 15, 4});
  CHECK(reshaped({-1}) == Shape{120});
  CHECK(reshaped({120}) == Shape{120});
  CHECK(reshaped({3, -1, 1}, {6}) == Shape{3, 2, 1});
  const auto refused = [](const std::vector<std::int64_t>& sizes) {
    return refusal([&](ModelBuilder& b) { b.reshape(b.input(), sizes); }, {4, 5, 6});
  };
  const std::string wanted = "layer 'reshape': requires (C, H, W) or (features) with the 120 values of (4, 5, 6), not ";
  CHECK(refused({4, 5, 7}) == wanted + "(4, 5, 7)");
  CHECK(refused({12, 10}) == wanted + "(12, 10)");
  CHECK(refused({-1, 7, 1}) == wanted + "(17, 7, 1)");
  CHECK(refused({-1, 200, 1}) == wanted + "(1, 200, 1)");
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{-1, -1, 4}, {0, 5, 6}, {-2, 5, 6}})
    CHECK(refused(sizes) == "layer 'reshape': sizes must be positive, except for one that may be -1");
}

TEST_CASE("products, concatenations and slices have the shapes of PyTorch's, and others are rejected") {
  const auto shape_of = [](const auto& append) {
    ModelBuilder m("channels", Shape{4, 5, 9});
    return m.build(append(m)).output();
  };
  const auto grow = [](ModelBuilder& m) { return m.conv2d("c", m.input(), {.out_channels = 6, .kernel = 1}); };
  const auto row = [](ModelBuilder& m) { return m.linear("l", m.flatten(m.input()), {.out_features = 7}); };
  CHECK(shape_of([&](ModelBuilder& m) { return m.concat({m.input(), grow(m)}); }) == Shape{10, 5, 9});
  CHECK(shape_of([&](ModelBuilder& m) {
          return m.concat({row(m), m.flatten(grow(m)), m.flatten(m.input())});
        }) == Shape{7 + 270 + 180});
  CHECK(shape_of([&](ModelBuilder& m) { return m.slice(m.input(), 1, 3); }) == Shape{3, 5, 9});
  CHECK(shape_of([&](ModelBuilder& m) { return m.slice(row(m), 6, 1); }) == Shape{1});
  CHECK(shape_of([&](ModelBuilder& m) { return m.multiply(m.input(), m.relu(m.input())); }) == Shape{4, 5, 9});
  for (const bool swapped : {false, true}) {  // the smaller one is the factor
    ModelBuilder m("factors", Shape{4, 5, 9});
    const auto pixels = m.conv2d("c", m.input(), {.out_channels = 1, .kernel = 1});
    const auto channels = m.global_avg_pool2d(m.input());
    const auto x = swapped ? m.multiply(pixels, m.input()) : m.multiply(m.input(), pixels);
    const Model model = m.build(swapped ? m.multiply(channels, x) : m.multiply(x, channels));
    CHECK(model.output() == Shape{4, 5, 9});
    CHECK(model.layers()[3].inputs == std::vector<int>{0, pixels.index});
    CHECK(model.layers()[4].inputs == std::vector<int>{x.index, channels.index});
  }

  const auto refused = [&](const auto& append) { return refusal([&](ModelBuilder& m) { append(m); }, Shape{4, 5, 9}); };
  CHECK(refused([](ModelBuilder& m) { m.concat({m.input()}); }) == "layer 'concat': requires at least two tensors");
  CHECK(refused([](ModelBuilder& m) {
          m.concat({m.input(), m.input()});
        }) == "layer 'concat': requires different nodes");
  CHECK(refused([&](ModelBuilder& m) {
          m.concat({m.input(), row(m)});
        }) == "layer 'concat': requires tensors that differ only in their channels, not (4, 5, 9) and (7,)");
  CHECK(refused([](ModelBuilder& m) {
          m.concat({m.input(), m.global_avg_pool2d(m.input())});
        }) == "layer 'concat': requires tensors that differ only in their channels, not (4, 5, 9) and (4, 1, 1)");
  for (const auto& [first, count] : std::vector<std::pair<int, int>>{{-1, 2}, {0, 0}, {0, 5}, {3, 2}, {4, 1}})
    CHECK(refused([first = first, count = count](ModelBuilder& m) { m.slice(m.input(), first, count); }) ==
          "layer 'slice': " + std::to_string(count) + " channels from " + std::to_string(first) +
              " are not in (4, 5, 9)");
  CHECK(refused([](ModelBuilder& m) { m.multiply(m.input(), m.input()); }) ==
        "layer 'multiply': requires two different nodes");
  CHECK(refused([&](ModelBuilder& m) { m.multiply(m.input(), m.global_avg_pool2d(grow(m))); }) ==
        "layer 'multiply': requires tensors of one shape, or one with one value for each channel or pixel of the "
        "other, not (4, 5, 9) and (6, 1, 1)");
}

TEST_CASE("dropouts of whole channels and samples require images and a probability below 1") {
  const auto drop = [](const auto& append, const Shape& input = {2, 3, 3}) {
    return refusal([&](ModelBuilder& m) { append(m); }, input);
  };
  CHECK(drop([](ModelBuilder& m) { m.dropout2d("d", m.input(), 0.5f); }) == "accepted");
  CHECK(drop([](ModelBuilder& m) { m.stochastic_depth("d", m.input(), 0); }) == "accepted");
  CHECK(drop([](ModelBuilder& m) { m.dropout2d("d", m.input(), 1); }) == "layer 'd': p must be in [0, 1)");
  CHECK(drop([](ModelBuilder& m) { m.stochastic_depth("d", m.input(), -0.1f); }) == "layer 'd': p must be in [0, 1)");
  CHECK(drop([](ModelBuilder& m) { m.dropout2d("d", m.input(), 0.5f); }, {7}) ==
        "layer 'd': requires an input of (C, H, W), not (7,)");
}

TEST_CASE(
    "group normalisation has a weight and a bias unless affine is false, and instance normalisation only if it is "
    "true") {
  ModelBuilder m("groups", Shape{6, 4, 4});
  auto x = m.group_norm("a", m.input(), {.groups = 3});
  x = m.group_norm("b", x, {.groups = 2, .eps = 1e-3, .affine = false});
  x = m.instance_norm2d("c", x);
  const Model model = m.build(m.instance_norm2d("d", x, {.eps = 0.1, .affine = true}));
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : model.parameters()) {
    CHECK(parameter.shape == Shape{6});
    CHECK(parameter.init.kind == InitKind::constant);
    CHECK(parameter.init.value == (parameter.name.ends_with("weight") ? 1.0f : 0.0f));
    names.push_back(parameter.name);
  }
  CHECK(names == std::vector<std::string>{"a.weight", "a.bias", "d.weight", "d.bias"});
  CHECK(model.buffers().empty());
  const auto norm_of = [&](std::size_t layer) { return std::get<GroupNorm>(model.layers()[layer].kind); };
  CHECK((norm_of(2).groups == 2 && norm_of(2).eps == 1e-3));
  CHECK((norm_of(3).groups == 6 && norm_of(3).eps == 1e-5 && !norm_of(3).affine));
  CHECK((norm_of(4).groups == 6 && norm_of(4).eps == 0.1 && norm_of(4).affine));
  CHECK(model.output() == Shape{6, 4, 4});
}

TEST_CASE("invalid pools, dropouts, linear layers and additions are rejected with the name of the layer") {
  const auto largest = [](const MaxPool2d& options, const Shape& input = {2, 5, 9}) {
    return refusal([&](ModelBuilder& m) { m.max_pool2d(m.input(), options); }, input);
  };
  const auto mean = [](const AvgPool2d& options, const Shape& input = {2, 5, 9}) {
    return refusal([&](ModelBuilder& m) { m.avg_pool2d(m.input(), options); }, input);
  };
  CHECK(largest({.kernel = 15}, {1, 15, 15}) == "accepted");
  CHECK(largest({.kernel = 16}, {1, 16, 16}) == "layer 'max_pool2d': the kernel must be at most 15");
  CHECK(largest({.kernel = 2, .padding = 1}) == "accepted");
  CHECK(largest({.kernel = 3, .padding = 2}) == "layer 'max_pool2d': padding must be at most half the kernel");
  CHECK(largest({.kernel = 6}) == "layer 'max_pool2d': a window of 6 does not fit an input of 5 with padding 0");
  CHECK(largest({}, {7}) == "layer 'max_pool2d': requires an input of (C, H, W), not (7,)");
  CHECK(mean({.kernel = 16}, {1, 16, 16}) == "accepted");
  CHECK(mean({.kernel = 3, .padding = 2}) == "layer 'avg_pool2d': padding must be at most half the kernel");
  CHECK(mean({}, {7}) == "layer 'avg_pool2d': requires an input of (C, H, W), not (7,)");
  CHECK(largest({.kernel = {2, 16}}, {1, 16, 16}) == "layer 'max_pool2d': the kernel must be at most 15");
  CHECK(largest({.kernel = {3, 2}, .padding = {1, 2}}) ==
        "layer 'max_pool2d': padding must be at most half the kernel");
  CHECK(largest({.kernel = 3, .dilation = 3}) ==
        "layer 'max_pool2d': a window of 7 does not fit an input of 5 with padding 0");
  CHECK(largest({.kernel = 2, .dilation = 0}) == "layer 'max_pool2d': dilation must be positive");
  CHECK(largest({.kernel = 6, .stride = 1, .ceil_mode = true}) ==
        "layer 'max_pool2d': a window of 6 does not fit an input of 5 with padding 0");
  CHECK(refusal([](ModelBuilder& m) { m.global_avg_pool2d(m.input()); }, {7}) ==
        "layer 'adaptive_avg_pool2d': requires an input of (C, H, W), not (7,)");
  CHECK(refusal([](ModelBuilder& m) {
          m.adaptive_avg_pool2d(m.input(), {1, 0});
        }) == "layer 'adaptive_avg_pool2d': the output must have at least one row and column");
  const auto dropout = [](float p) { return refusal([&](ModelBuilder& m) { m.dropout("d", m.input(), p); }); };
  CHECK(dropout(0) == "accepted");
  for (const float p : {-0.1f, 1.0f, std::nanf("")}) CHECK(dropout(p) == "layer 'd': p must be in [0, 1)");
  const auto linear = [](std::int64_t features, const Shape& input) {
    return refusal([&](ModelBuilder& m) { m.linear("l", m.input(), {.out_features = features}); }, input);
  };
  CHECK(linear(1, {7}) == "accepted");
  CHECK(linear(0, {7}) == "layer 'l': out_features must be positive");
  CHECK(linear(1, {2, 5, 9}) ==
        "layer 'l': a linear layer requires an input of (features), not (2, 5, 9); flatten first");
  CHECK(refusal([](ModelBuilder& m) { m.add(m.input(), m.input()); }) == "layer 'add': requires two different nodes");
  CHECK(refusal([](ModelBuilder& m) { m.add(m.input(), m.flatten(m.input())); }) ==
        "layer 'add': requires two tensors of one shape, not (2, 5, 9) and (90,)");
}

TEST_CASE("a model builder rejects repeated names, missing nodes, another output and an input without elements") {
  CHECK(refusal([](ModelBuilder& m) { m.dropout("d", m.dropout("d", m.input(), 0), 0); }) ==
        "layer 'd': the name is used twice");
  CHECK(refusal([](ModelBuilder& m) { m.dropout("input", m.input(), 0); }) == "layer 'input': the name is used twice");
  CHECK(refusal([](ModelBuilder& m) { m.relu({1}); }) == "layer 'relu': reads a node that does not exist");
  CHECK(refusal([](ModelBuilder& m) { m.activation({1}, Gelu{}); }) ==
        "layer 'gelu': reads a node that does not exist");
  CHECK(refusal([](ModelBuilder& m) { m.flatten({-1}); }) == "layer 'flatten': reads a node that does not exist");
  CHECK(refusal([](ModelBuilder& m) { m.relu(m.input()), m.build(m.input()); }) ==
        "layer 'output': must be the node that was added last");
  CHECK(refusal([](ModelBuilder& m) { m.build({1}); }) == "layer 'output': must be the node that was added last");
  for (const Shape& input : {Shape{}, Shape{2, 3}, Shape{1, 2, 3, 4}, Shape{0}, Shape{1, 0, 3}})
    CHECK(refusal([](ModelBuilder&) {}, input) ==
          "layer 'input': must be (C, H, W) or (features) without empty dimensions, not " + to_string(input));
  CHECK(refusal([](ModelBuilder&) {}, {7}) == "accepted");
}

TEST_CASE("the built-in models have their registered names, and an mlp has any number of hidden layers") {
  for (const models::Entry& entry : models::registry()) {
    INFO(entry.name);
    const Shape input = entry.name == "mnist_convnet" ? Shape{1, 28, 28} : Shape{3, 32, 32};
    const Model model = entry.make(input, 6);
    CHECK(model.name() == entry.name);
    CHECK(model.input() == input);
    CHECK(model.output() == Shape{6});
    CHECK_FALSE(entry.summary.empty());
  }
  const Model deep = models::mlp({.input = {5}, .hidden = {4, 3}, .classes = 2});
  CHECK(parameter_names(deep) ==
        std::vector<std::string>{"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "fc3.weight", "fc3.bias"});
  CHECK(deep.layers().size() == 6);  // a flat input needs no layer that flattens it
  CHECK(deep.parameter_count() == 5 * 4 + 4 + 4 * 3 + 3 + 3 * 2 + 2);
  CHECK(models::mlp({.input = {5}, .hidden = {}, .classes = 2}).layers().size() == 2);
}

TEST_CASE("the stem of a residual network depends on the option, or by default on the height of the image") {
  using Stem = models::ResnetOptions::Stem;
  const auto first = [](Stem stem, const Shape& input) {
    const Model model = models::resnet18({.input = input, .stem = stem, .width = 4});
    return std::get<Conv2d>(model.layers()[1].kind).kernel.h;
  };
  CHECK(first(Stem::imagenet, {3, 32, 32}) == 7);
  CHECK(first(Stem::cifar, {3, 64, 64}) == 3);
  CHECK(first(Stem::by_size, {3, 64, 32}) == 7);
  CHECK(first(Stem::by_size, {3, 63, 99}) == 3);
}

TEST_CASE("a model that does not exist, or does not fit the images, is rejected with the choices") {
  CHECK_THROWS_WITH(models::find("resnet"),
                    "model 'resnet' does not exist; choose one of mnist_convnet, resnet18, resnet34, resnet50, "
                    "resnet101, resnet152, resnext50_32x4d, wide_resnet50_2, mobilenet_v2, mobilenet_v3_small, "
                    "mobilenet_v3_large, efficientnet_b0, regnet_y_400mf, shufflenet_v2_x1_0, convnext_tiny, "
                    "densenet121, googlenet, vgg11_bn, vgg13_bn, vgg16_bn, vgg19_bn, cifar_speed, mlp");
  CHECK_THROWS_WITH(models::find("mnist_convnet").make({3, 28, 28}, 10),
                    "model 'mnist_convnet' requires images of (1, 28, 28), not (3, 28, 28); choose another model or "
                    "data set");
  CHECK_THROWS_WITH(models::find("resnet18").make({7}, 10), Catch::Contains("requires an input of (C, H, W)"));
}
