// Nodes, neighbours of normalisations and the table of normalisations, field by field.
#include "engine/layers/nodes.h"

#include <fmt/format.h>

#include "dp/error.h"
#include "engine/plan/plan.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::engine;

namespace {

std::string text_of(const kernels::Window& window) {
  return std::to_string(window.kernel.h) + "," + std::to_string(window.stride.h) + "," +
         std::to_string(window.padding.h);
}

// "conv1+relu: conv -1, (2, 8, 8) to (3, 4, 4), relu, window 3,2,1, weight 0, bias 1, layer 1"
std::string text_of(const Node& node) {
  static constexpr const char* kKinds[] = {"conv",       "conv_transpose", "linear",   "norm",     "group_norm",
                                           "add",        "multiply",       "concat",   "slice",    "channel_shuffle",
                                           "reshape",    "max_pool",       "avg_pool", "resample", "relu",
                                           "activation", "prelu",          "softmax",  "dropout",  "drop_channels"};
  std::string text = node.name + ": " + kKinds[static_cast<std::size_t>(node.kind)];
  for (const int input : node.inputs) text += " " + std::to_string(input);
  text += ", " + to_string(node.input) + " to " + to_string(node.output);
  if (node.relu) text += ", relu";
  const bool pool = node.kind == NodeKind::max_pool || node.kind == NodeKind::avg_pool;
  if ((pool && !node.adaptive) || node.kind == NodeKind::conv) text += ", window " + text_of(node.window);
  if (node.kind == NodeKind::conv_transpose)
    text += ", window " + text_of(node.window) + ", groups " + std::to_string(node.groups);
  if (node.adaptive) text += ", adaptive";
  if (node.kind == NodeKind::resample)
    text += fmt::format(", mode {}, aligned {}, scale {}, shift {}", static_cast<int>(node.resampling.mode),
                        node.resampling.align_corners, node.resampling.scale, to_string(node.resampling.shift));
  if (node.kind == NodeKind::prelu) text += ", numbers " + std::to_string(node.numbers);
  if (node.dropout)
    text += ", dropout " + std::to_string(static_cast<int>(100 * node.dropout->p)) + " % of layer " +
            std::to_string(node.dropout->layer);
  if (node.function)
    text +=
        ", slope " + std::to_string(static_cast<int>(100 * std::get<LeakyRelu>(*node.function).negative_slope)) + " %";
  if (node.weight >= 0) text += ", weight " + std::to_string(node.weight);
  if (node.bias >= 0) text += ", bias " + std::to_string(node.bias);
  if (node.kind == NodeKind::group_norm)
    text += ", groups " + std::to_string(node.groups) + ", eps 1/" + std::to_string(static_cast<int>(1 / node.eps));
  for (const Shape& part : node.parts) text += ", part " + to_string(part);
  if (node.kind == NodeKind::channel_shuffle) text += ", groups " + std::to_string(node.groups);
  if (node.whole_samples) text += ", whole samples";
  if (node.kind == NodeKind::slice) text += ", from " + std::to_string(node.first);
  if (node.norm >= 0) text += ", norm " + std::to_string(node.norm);
  if (node.layer >= 0) text += ", layer " + std::to_string(node.layer);
  return text;
}

std::vector<std::string> nodes_of(const Model& model, bool dropout) {
  std::vector<std::string> all;
  for (const Node& node : fuse(model, dropout)) all.push_back(text_of(node));
  return all;
}

Model every_layer(float p) {
  ModelBuilder m("every_layer", Shape{2, 8, 8});
  const auto first = m.relu(m.conv2d("conv1", m.input(), {.out_channels = 3, .kernel = 3, .stride = 2, .padding = 1}));
  auto x = m.batch_norm2d("bn2", m.conv2d("conv2", first, {.out_channels = 3, .kernel = 1, .bias = false}));
  x = m.relu(m.add(x, first));
  x = m.relu(m.avg_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1}));
  x = m.max_pool2d(m.relu(m.dropout("drop1", x, p)), {.kernel = 2, .stride = 1});
  x = m.flatten(m.adaptive_avg_pool2d(m.dropout("drop2", x, 0.5f), {2, 1}));
  const auto left = m.linear("left", x, {.out_features = 4, .bias = false});
  return m.build(m.activation(m.add(left, m.linear("right", x, {.out_features = 4})), LeakyRelu{0.5f}));
}

std::string refusal(const Model& model) {
  try {
    fuse(model, true);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    return error.what();
  }
  return "";
}

// Of each node: moments, gradient, reader, normalizes, folds.
std::vector<std::vector<int>> neighbours_of(const Model& model, bool adjacent) {
  std::vector<std::vector<int>> all;
  for (const NormNeighbours& own : norm_neighbours(fuse(model, true), adjacent))
    all.push_back({own.moments, own.gradient, own.reader, own.normalizes, own.folds});
  return all;
}

}  // namespace

TEST_CASE("fusion: every field of every kind of node") {
  std::vector<std::string> expected{
      "conv1+relu: conv -1, (2, 8, 8) to (3, 4, 4), relu, window 3,2,1, weight 0, bias 1, layer 1",
      "conv2: conv 0, (3, 4, 4) to (3, 4, 4), window 1,1,0, weight 2, layer 3",
      "bn2+add+relu: norm 1 0, (3, 4, 4) to (3, 4, 4), relu, weight 3, bias 4, norm 0, layer 4",
      "avg_pool: avg_pool 2, (3, 4, 4) to (3, 2, 2), window 3,2,1",
      "relu: relu 3, (3, 2, 2) to (3, 2, 2)",
      "drop1: dropout 4, (3, 2, 2) to (3, 2, 2), dropout 25 % of layer 9",
      "relu+max_pool+drop2: max_pool 5, (3, 2, 2) to (3, 1, 1), relu, window 2,1,0, dropout 50 % of layer 12",
      "avg_pool: avg_pool 6, (3, 1, 1) to (3, 2, 1), adaptive",
      "left: linear 7, (3, 2, 1) to (4,), weight 5, layer 15",
      "right: linear 7, (3, 2, 1) to (4,), weight 6, bias 7, layer 16",
      "add: add 8 9, (4,) to (4,)",
      "leaky_relu: activation 10, (4,) to (4,), slope 50 %"};
  CHECK(nodes_of(every_layer(0.25f), true) == expected);

  // A dropout with p = 0 does nothing. Later nodes move up.
  expected.erase(expected.begin() + 5);
  expected[5] = "relu+max_pool+drop2: max_pool 4, (3, 2, 2) to (3, 1, 1), relu, window 2,1,0, dropout 50 % of layer 12";
  expected[6] = "avg_pool: avg_pool 5, (3, 1, 1) to (3, 2, 1), adaptive";
  expected[7] = "left: linear 6, (3, 2, 1) to (4,), weight 5, layer 15";
  expected[8] = "right: linear 6, (3, 2, 1) to (4,), weight 6, bias 7, layer 16";
  expected[9] = "add: add 7 8, (4,) to (4,)";
  expected[10] = "leaky_relu: activation 9, (4,) to (4,), slope 50 %";
  CHECK(nodes_of(every_layer(0), true) == expected);
  expected[5] = "relu+max_pool: max_pool 4, (3, 2, 2) to (3, 1, 1), relu, window 2,1,0";
  CHECK(nodes_of(every_layer(0.25f), false) == expected);
}

TEST_CASE("fusion: a model that computes nothing, and a layer without a reader, are rejected") {
  ModelBuilder empty("empty", Shape{6});
  CHECK(refusal(empty.build(empty.dropout("drop", empty.flatten(empty.input()), 0))) ==
        "model 'empty' has no layer that computes anything");
  ModelBuilder m("loose", Shape{2, 4, 4});
  m.conv2d("unread", m.input(), {.out_channels = 2, .kernel = 1});
  CHECK(refusal(m.build(m.linear("fc", m.flatten(m.input()), {.out_features = 3}))) ==
        "nothing reads layer 'unread' of model 'loose'; remove it, or connect it");
}

TEST_CASE("fusion: the nodes of upsampling, padding, transposed convolutions, PReLU and softmax") {
  ModelBuilder m("decoder", Shape{4, 4, 4});
  auto x = m.conv_transpose2d("up", m.input(),
                              {.out_channels = 6, .kernel = 2, .stride = 2, .padding = 1, .groups = 2, .bias = false});
  x = m.upsample(x, {.scale_factor = 1.5, .mode = Upsample::Mode::bilinear, .align_corners = true});
  x = m.zero_pad2d(m.upsample(x, {.size = HW{4, 5}}), {.left = 1, .right = 2, .top = 3, .bottom = -4});
  x = m.prelu("act", m.conv_transpose2d("last", x, {.out_channels = 2, .kernel = 1}), {.num_parameters = 2});
  CHECK(nodes_of(m.build(m.flatten(m.softmax(x))), true) ==
        std::vector<std::string>{
            "up: conv_transpose -1, (4, 4, 4) to (6, 6, 6), window 2,2,1, groups 2, weight 0, layer 1",
            "upsample: resample 0, (6, 6, 6) to (6, 9, 9), mode 1, aligned true, scale 1.5, shift 0",
            "upsample: resample 1, (6, 9, 9) to (6, 4, 5), mode 0, aligned false, scale 0, shift 0",
            "zero_pad: resample 2, (6, 4, 5) to (6, 3, 8), mode 2, aligned false, scale 0, shift 3x1",
            "last: conv_transpose 3, (6, 3, 8) to (2, 3, 8), window 1,1,0, groups 1, weight 1, bias 2, layer 5",
            "act: prelu 4, (2, 3, 8) to (2, 3, 8), numbers 2, weight 3, layer 6",
            "softmax: softmax 5, (2, 3, 8) to (2, 3, 8)"});
}

TEST_CASE("fusion: a group normalisation takes the ReLU that alone reads it") {
  ModelBuilder m("groups", Shape{4, 4, 4});
  auto x = m.relu(m.group_norm("a", m.input(), {.groups = 2, .eps = 0.125}));
  const auto shared = m.instance_norm2d("b", x, {.eps = 0.0625});
  x = m.add(m.relu(shared), shared);
  CHECK(nodes_of(m.build(m.linear("fc", m.flatten(x), {.out_features = 2})), true) ==
        std::vector<std::string>{
            "a+relu: group_norm -1, (4, 4, 4) to (4, 4, 4), relu, weight 0, bias 1, groups 2, eps 1/8, layer 1",
            "b: group_norm 0, (4, 4, 4) to (4, 4, 4), groups 4, eps 1/16, layer 3",
            "relu: relu 1, (4, 4, 4) to (4, 4, 4)", "add: add 2 1, (4, 4, 4) to (4, 4, 4)",
            "fc: linear 3, (4, 4, 4) to (2,), weight 2, bias 3, layer 7"});
}

TEST_CASE("fusion: a product, a concatenation and a slice are nodes of their own") {
  ModelBuilder m("channels", Shape{3, 4, 4});
  const auto all = m.concat({m.input(), m.relu(m.input()), m.slice(m.input(), 1, 2)});
  const auto flat = m.flatten(m.multiply(m.global_avg_pool2d(all), all));
  const auto x = m.concat({flat, m.linear("fc", flat, {.out_features = 2})});
  CHECK(nodes_of(m.build(x), true) ==
        std::vector<std::string>{
            "relu: relu -1, (3, 4, 4) to (3, 4, 4)", "slice: slice -1, (3, 4, 4) to (2, 4, 4), from 1",
            "concat: concat -1 0 1, (3, 4, 4) to (8, 4, 4), part (3, 4, 4), part (3, 4, 4), part (2, 4, 4)",
            "avg_pool: avg_pool 2, (8, 4, 4) to (8, 1, 1), adaptive",
            "multiply: multiply 2 3, (8, 4, 4) to (8, 4, 4), part (8, 4, 4), part (8, 1, 1)",
            "fc: linear 4, (8, 4, 4) to (2,), weight 0, bias 1, layer 7",
            "concat: concat 4 5, (128,) to (130,), part (128,), part (2,)"});
}

TEST_CASE("fusion: a dropout of whole channels or samples is a node of its own, also after a pool") {
  ModelBuilder m("drops", Shape{3, 4, 4});
  auto x = m.stochastic_depth("depth", m.dropout2d("channels", m.max_pool2d(m.input()), 0.25f), 0.5f);
  const Model model = m.build(m.linear("fc", m.flatten(m.stochastic_depth("none", x, 0)), {.out_features = 2}));
  const std::vector<std::string> nodes{"max_pool: max_pool -1, (3, 4, 4) to (3, 2, 2), window 2,2,0",
                                       "channels: drop_channels 0, (3, 2, 2) to (3, 2, 2), dropout 25 % of layer 2",
                                       "depth: drop_channels 1, (3, 2, 2) to (3, 2, 2), dropout 50 % of layer 3, whole "
                                       "samples",
                                       "fc: linear 2, (3, 2, 2) to (2,), weight 0, bias 1, layer 6"};
  CHECK(nodes_of(model, true) == nodes);
  CHECK(nodes_of(model, false).size() == 2);
}

TEST_CASE("fusion: layer normalisations take a ReLU, and layers on pixels are convolutions") {
  ModelBuilder m("pixels", Shape{4, 3, 3});
  auto x = m.relu(m.layer_norm("norm", m.input(), {.eps = 0.125}));
  x = m.relu(m.pointwise_linear("point", x, {.out_features = 6}));
  x = m.scale("gamma", m.channel_shuffle(x, 3), 0.5f);
  const Model model = m.build(m.linear("fc", m.flatten(x), {.out_features = 2}));
  CHECK(nodes_of(model, true) ==
        std::vector<std::string>{
            "norm+relu: group_norm -1, (4, 3, 3) to (4, 3, 3), relu, weight 0, bias 1, groups 0, eps 1/8, layer 1",
            "point+relu: conv 0, (4, 3, 3) to (6, 3, 3), relu, window 1,1,0, weight 2, bias 3, layer 3",
            "channel_shuffle: channel_shuffle 1, (6, 3, 3) to (6, 3, 3), groups 3",
            "gamma: conv 2, (6, 3, 3) to (6, 3, 3), window 1,1,0, weight 4, layer 6",
            "fc: linear 3, (6, 3, 3) to (2,), weight 5, bias 6, layer 8"});
}

TEST_CASE("norm fusion: biases, ReLUs and several readers limit what a convolution computes") {
  ModelBuilder m("neighbours", Shape{2, 4, 4});
  const auto conv = [&](const std::string& name, ModelBuilder::Node x, bool bias) {
    return m.conv2d(name, x, {.out_channels = 3, .kernel = 1, .bias = bias});
  };
  auto x = m.relu(m.batch_norm2d("bn0", conv("conv0", m.input(), true)));
  x = m.batch_norm2d("bn1", m.relu(conv("conv1", x, true)));
  const auto left = conv("left", x, false), right = conv("right", x, false);
  const auto a = m.batch_norm2d("bn2", left), b = m.batch_norm2d("bn3", right), c = m.relu(a), d = m.relu(b);
  x = m.add(c, d);
  const Model model = m.build(m.linear("fc", m.flatten(m.global_avg_pool2d(x)), {.out_features = 2}));
  std::vector<std::vector<int>> expected{
      {-1, -1, -1, -1, 1},   // conv0 has a bias: it folds bn0, and computes no moments
      {-1, 2, -1, -1, -1},   // bn0; conv1 has a bias and a ReLU, hence it does not normalise its input
      {-1, -1, -1, -1, -1},  // conv1+relu
      {-1, 4, -1, -1, -1},   // bn1, after a ReLU; two convolutions read it
      {-1, -1, -1, 6, 6},    // left
      {-1, -1, -1, 7, 7},    // right
      {4, -1, -1, -1, -1},   // bn2
      {5, -1, -1, -1, -1},   // bn3
      {-1, -1, -1, -1, -1}, {-1, -1, -1, -1, -1}, {-1, -1, -1, -1, -1}};
  CHECK(neighbours_of(model, false) == expected);
  for (const std::size_t branch : {4, 5}) {  // the convolutions are not next to their normalisations
    expected[branch][3] = -1;
    expected[branch + 2][0] = -1;
  }
  CHECK(neighbours_of(model, true) == expected);
}

TEST_CASE("norm fusion: a normalisation that three layers read stays separate") {
  ModelBuilder m("three_readers", Shape{2, 4, 4});
  const auto conv = [&](const std::string& name, ModelBuilder::Node x) {
    return m.conv2d(name, x, {.out_channels = 3, .kernel = 1, .bias = false});
  };
  const auto x = m.relu(m.batch_norm2d("bn", conv("conv", m.input())));
  const auto sum = m.add(m.add(conv("a", x), conv("b", x)), conv("c", x));
  const Model model = m.build(m.linear("fc", m.flatten(m.global_avg_pool2d(sum)), {.out_features = 2}));
  CHECK(neighbours_of(model, false)[1] == std::vector<int>{0, -1, -1, -1, -1});
}

TEST_CASE("norms: every field of the table, and the all-gathers of several shards") {
  ModelBuilder m("norms", Shape{2, 4, 4});
  auto x = m.conv2d("conv1", m.input(), {.out_channels = 3, .kernel = 1});
  x = m.batch_norm2d("bn1", x, {.eps = 1e-3, .momentum = 0.2});
  x = m.batch_norm2d("bn2", m.conv2d("conv2", x, {.out_channels = 20, .kernel = 2}), {.eps = 1e-4, .momentum = 0.3});
  const Model model = m.build(m.linear("fc", m.flatten(x), {.out_features = 2}));
  const NormTable table(model);
  REQUIRE(table.count() == 2);
  CHECK(table.running_statistics_size() == 96);
  CHECK(table.moments_bytes() == 752);
  CHECK(table.first_on_1x1_images() == nullptr);

  // name, layer, channels, cells, eps, momentum, mean, variance, moments, sums, moments_bytes(), sums_bytes()
  const auto text_of = [](const Norm& norm) {
    return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", norm.name, norm.layer, norm.channels, norm.cells,
                       norm.eps, norm.momentum, norm.mean, norm.variance, norm.moments, norm.sums, norm.moments_bytes(),
                       norm.sums_bytes());
  };
  CHECK(text_of(table.norm(0)) == "bn1 2 3 16 0.001 0.2 0 16 0 56 56 48");
  CHECK(text_of(table.norm(1)) == "bn2 4 20 9 0.0001 0.3 32 64 104 432 328 320");

  const auto numbers = [](const std::vector<AllGather>& all_gathers) {
    std::vector<std::size_t> all;
    for (const AllGather& one : all_gathers) all.insert(all.end(), {one.offset, one.shard_bytes});
    return all;
  };
  CHECK(numbers(forward_all_gathers(table, 3)) == std::vector<std::size_t>{0, 56, 312, 328});
  // Backward gathers only the sums of normalisations that it computes.
  const auto context = kernels::backend(DeviceKind::reference).open({DeviceKind::reference, 0}, {});
  const auto backward = [&](std::vector<bool> frozen) {
    const PlanOptions options{.batch = 2, .norm = BatchNormMode::sync, .shards = 3, .frozen = std::move(frozen)};
    return numbers(Plan(model, *context, options, nullptr, table).backward_all_gathers());
  };
  const bool yes = true, no = false;  // conv1, bn1, conv2, bn2, fc: weight and bias of each
  CHECK(backward({}) == std::vector<std::size_t>{1296, 320, 168, 48});
  CHECK(backward({no, no, yes, yes, yes, yes, yes, yes, yes, no}) == std::vector<std::size_t>{1296, 320, 168, 48});
  CHECK(backward({yes, yes, yes, yes, yes, yes, yes, no, no, no}) == std::vector<std::size_t>{1296, 320});
  CHECK(backward({yes, yes, yes, yes, yes, yes, yes, yes, no, no}).empty());
}

TEST_CASE("norms: the first normalisation with one value per image is found") {
  ModelBuilder m("one_cell", Shape{2, 4, 4});
  auto x = m.batch_norm2d("large", m.conv2d("conv", m.input(), {.out_channels = 3}));
  x = m.batch_norm2d("second", m.batch_norm2d("first", m.global_avg_pool2d(x)));
  const NormTable table(m.build(m.linear("fc", m.flatten(x), {.out_features = 2})));
  REQUIRE(table.first_on_1x1_images() != nullptr);
  CHECK(table.first_on_1x1_images()->name == "first");
}
