#include "dp/model.h"

#include <algorithm>
#include <cmath>

#include "dp/error.h"

namespace dp {
namespace {

[[noreturn]] void fail(const std::string& layer, const std::string& why) {
  throw Error(ErrorCode::usage, "layer '" + layer + "': " + why);
}

constexpr int kLargestSide = 1 << 24;  // of a resampled image, which kernels count in float32

// One direction of a window.
struct Side {
  int kernel, stride, padding, dilation = 1, more_behind = 0;
  std::int64_t span() const { return std::int64_t{dilation} * (kernel - 1) + 1; }  // cells that the window covers
};

std::int64_t window_output(const std::string& layer, std::int64_t size, const Side& side) {
  if (side.kernel < 1 || side.stride < 1 || side.padding < 0)
    fail(layer, "kernel and stride must be positive; padding must not be negative");
  if (side.dilation < 1) fail(layer, "dilation must be positive");
  const std::int64_t room = size + 2 * std::int64_t{side.padding} + side.more_behind - side.span();
  if (room < 0)
    fail(layer, "a window of " + std::to_string(side.span()) + " does not fit an input of " + std::to_string(size) +
                    " with padding " + std::to_string(side.padding));
  return room / side.stride + 1;
}

// The convolution with kSamePadding replaced by numbers.
Conv2d with_padding(const std::string& name, Conv2d conv) {
  if (!conv.padding.same) return conv;
  if (!(conv.stride == 1)) fail(name, "padding 'same' requires a stride of 1");
  const auto around = [&](int HW::*side) {
    const std::int64_t cells = std::int64_t{conv.dilation.*side} * (std::int64_t{conv.kernel.*side} - 1);
    if (cells > kLargestSide) fail(name, "the window is larger than any image");
    return static_cast<int>(std::max<std::int64_t>(cells, 0));
  };
  const HW all(around(&HW::h), around(&HW::w));
  conv.padding.h = all.h / 2, conv.padding.w = all.w / 2;
  conv.padding.more_behind = {all.h % 2, all.w % 2};
  return conv;
}

// The size of one side of a pool's output.
std::int64_t pooled_size(const std::string& layer, std::int64_t size, Side side, bool ceil_mode) {
  if (2 * std::int64_t{side.padding} > side.kernel) fail(layer, "padding must be at most half the kernel");
  if (ceil_mode && side.stride > 1) {
    const auto over = static_cast<int>((size + 2 * std::int64_t{side.padding} - side.span()) % side.stride);
    side.more_behind = (side.stride - over) % side.stride;
  }
  const std::int64_t count = window_output(layer, size, side);
  return (count - 1) * side.stride < size + side.padding ? count : count - 1;  // no window begins behind the image
}

template <typename Pool>
Shape pooled_shape(const char* layer, const Shape& in, const Pool& pool, HW dilation, bool ceil_mode) {
  if (in.rank() != 3) fail(layer, "requires an input of (C, H, W), not " + to_string(in));
  const auto side = [&](int axis, int HW::*of) {
    return pooled_size(layer, in[axis], {pool.kernel.*of, (*pool.stride).*of, pool.padding.*of, dilation.*of},
                       ceil_mode);
  };
  return {in[0], side(1, &HW::h), side(2, &HW::w)};
}

Dropout checked_dropout(const std::string& name, const Shape& in, const Dropout& dropout) {
  if (!(dropout.p >= 0.0f && dropout.p < 1.0f)) fail(name, "p must be in [0, 1)");
  if (dropout.unit != Dropout::Unit::element && in.rank() != 3)
    fail(name, "requires an input of (C, H, W), not " + to_string(in));
  return dropout;
}

// The size of one side of a transposed convolution's output.
std::int64_t transposed_size(const std::string& name, std::int64_t size, const ConvTranspose2d& conv, int HW::*side) {
  const int kernel = conv.kernel.*side, stride = conv.stride.*side, padding = conv.padding.*side,
            dilation = conv.dilation.*side, more = conv.output_padding.*side;
  if (kernel < 1 || stride < 1 || padding < 0 || dilation < 1)
    fail(name, "kernel, stride and dilation must be positive; padding must not be negative");
  if (more < 0 || more >= stride) fail(name, "output_padding must be less than the stride, and not negative");
  const std::int64_t count =
      (size - 1) * stride - 2 * std::int64_t{padding} + std::int64_t{dilation} * (kernel - 1) + 1 + more;
  if (count < 1) fail(name, "the padding leaves nothing of the output");
  return count;
}

struct LinearInit {
  Init weight, bias;
};
LinearInit linear_init(const Linear& linear, std::int64_t features) {
  const Init uniform{InitKind::uniform, 1.0f / std::sqrt(static_cast<float>(features))};
  if (linear.init) return {*linear.init, linear.torch_bias ? uniform : Init{InitKind::constant, 0}};
  return {uniform, uniform};
}

}  // namespace

std::int64_t Model::parameter_count() const {
  std::int64_t count = 0;
  for (const ParameterSpec& parameter : parameters_) count += parameter.shape.numel();
  return count;
}

GraphBuilder::GraphBuilder(std::string name, const Shape& input) {
  if ((input.rank() != 1 && input.rank() != 3) || input.numel() == 0)
    fail("input", "must be (C, H, W) or (features) without empty dimensions, not " + to_string(input));
  model_.name_ = std::move(name);
  model_.layers_.push_back({"input", Input{}, {}, input});
}

const Shape& GraphBuilder::shape_of(Node x, const std::string& reader) const {
  if (x.index < 0 || x.index >= static_cast<int>(model_.layers_.size()))
    fail(reader, "reads a node that does not exist");
  return model_.layers_[static_cast<std::size_t>(x.index)].output;
}

GraphBuilder::Node GraphBuilder::append(std::string name, LayerKind kind, std::vector<int> inputs,
                                        const Shape& output) {
  const int index = static_cast<int>(model_.layers_.size());
  const auto unnamed = [](int i) { return "layer" + std::to_string(i); };
  const bool invented = name.empty();
  if (invented) name = unnamed(index);
  for (std::size_t i = 0; i < model_.layers_.size(); ++i) {
    Layer& layer = model_.layers_[i];
    if (layer.name != name) continue;
    // The network may have a layer of its own named "layer4". Then the generated name changes, not that one.
    const auto trained = [&](const ParameterSpec& parameter) { return parameter.layer == static_cast<int>(i); };
    if (invented)
      name += '_';
    else if (layer.name == unnamed(static_cast<int>(i)) && std::ranges::none_of(model_.parameters_, trained))
      layer.name += '_';
    else
      fail(name, "the name is used twice");
  }
  model_.layers_.push_back({std::move(name), std::move(kind), std::move(inputs), output, index});
  return {index};
}

void GraphBuilder::parameter(const std::string& name, const Shape& shape, Node node, const Init& init) {
  model_.parameters_.push_back({name, shape, node.index, init});
}

void GraphBuilder::buffer(const BufferSpec& buffer) { model_.buffers_.push_back(buffer); }

Model GraphBuilder::build(Node output) {
  if (output.index + 1 != static_cast<int>(model_.layers_.size()))
    fail("output", "must be the node that was added last");
  return std::move(model_);
}

ModelBuilder::Node ModelBuilder::conv2d(const std::string& name, Node x, const Conv2d& given) {
  const Conv2d options = with_padding(name, given);
  const HW &kernel = options.kernel, &stride = options.stride, &dilation = options.dilation;
  const Padding& padding = options.padding;
  const Shape in = shape_of(x, name);
  if (in.rank() != 3) fail(name, "a convolution requires an input of (C, H, W), not " + to_string(in));
  if (options.out_channels < 1) fail(name, "out_channels must be positive");
  if (padding.more_behind.h < 0 || padding.more_behind.w < 0) fail(name, "padding must not be negative");
  if (options.groups < 1 || in[0] % options.groups != 0 || options.out_channels % options.groups != 0)
    fail(name, std::to_string(options.groups) + " groups do not divide " + std::to_string(in[0]) + " input and " +
                   std::to_string(options.out_channels) + " output channels");
  const Shape out{options.out_channels,
                  window_output(name, in[1], {kernel.h, stride.h, padding.h, dilation.h, padding.more_behind.h}),
                  window_output(name, in[2], {kernel.w, stride.w, padding.w, dilation.w, padding.more_behind.w})};
  const std::int64_t in_channels = in[0] / options.groups;  // of a group
  const Node node = append(name, options, {x.index}, out);
  const auto window = static_cast<float>(kernel.h) * static_cast<float>(kernel.w);
  // PyTorch's kaiming_uniform_(a = sqrt(5)) has the bound 1/sqrt(fan_in), for weight and bias.
  const Init uniform{InitKind::uniform, 1.0f / std::sqrt(static_cast<float>(in_channels) * window)};
  const bool by_default = options.init == ConvInit::torch_default;
  const std::int64_t fan = options.init == ConvInit::kaiming_normal_fan_in ? in_channels : options.out_channels;
  const float deviation = options.init == ConvInit::normal_001   ? 0.01f
                          : options.init == ConvInit::normal_002 ? 0.02f
                                                                 : std::sqrt(2.0f / (static_cast<float>(fan) * window));
  const Init dirac{InitKind::dirac, uniform.value};
  parameter(name + ".weight", Shape{options.out_channels, in_channels, kernel.h, kernel.w}, node,
            by_default                        ? uniform
            : options.init == ConvInit::dirac ? dirac
                                              : Init{InitKind::normal, deviation});
  if (options.bias)
    parameter(name + ".bias", Shape{options.out_channels}, node,
              by_default || options.torch_bias ? uniform : Init{InitKind::constant, 0});
  return node;
}

ModelBuilder::Node ModelBuilder::conv_transpose2d(const std::string& name, Node x, const ConvTranspose2d& options) {
  const Shape in = shape_of(x, name);
  if (in.rank() != 3) fail(name, "requires an input of (C, H, W), not " + to_string(in));
  if (options.out_channels < 1) fail(name, "out_channels must be positive");
  if (options.groups < 1 || in[0] % options.groups != 0 || options.out_channels % options.groups != 0)
    fail(name, std::to_string(options.groups) + " groups do not divide " + std::to_string(in[0]) + " input and " +
                   std::to_string(options.out_channels) + " output channels");
  const Shape out{options.out_channels, transposed_size(name, in[1], options, &HW::h),
                  transposed_size(name, in[2], options, &HW::w)};
  const Node node = append(name, options, {x.index}, out);
  const Shape weight{in[0], options.out_channels / options.groups, options.kernel.h, options.kernel.w};
  // PyTorch's fan_in of these weights is that of the convolution in the other direction.
  const Init uniform{InitKind::uniform, 1.0f / std::sqrt(static_cast<float>(weight.numel() / weight[0]))};
  parameter(name + ".weight", weight, node, uniform);
  if (options.bias) parameter(name + ".bias", Shape{options.out_channels}, node, uniform);
  return node;
}

ModelBuilder::Node ModelBuilder::batch_norm2d(const std::string& name, Node x, const BatchNorm2d& options) {
  const Shape in = shape_of(x, name);
  if (in.rank() != 3) fail(name, "batch normalisation requires an input of (C, H, W), not " + to_string(in));
  if (!(options.eps > 0)) fail(name, "eps must be positive");
  if (!(options.momentum >= 0 && options.momentum <= 1)) fail(name, "momentum must be in [0, 1]");
  const Node node = append(name, options, {x.index}, in);
  const Shape channels{in[0]};
  if (options.affine) {
    parameter(name + ".weight", channels, node, {InitKind::constant, 1});
    parameter(name + ".bias", channels, node, {InitKind::constant, 0});
  }
  if (!options.track_running_stats) return node;
  buffer({name + ".running_mean", channels, DType::f32, node.index, BufferKind::running_mean});
  buffer({name + ".running_var", channels, DType::f32, node.index, BufferKind::running_var});
  buffer({name + ".num_batches_tracked", Shape{}, DType::i64, node.index, BufferKind::num_batches_tracked});
  return node;
}

ModelBuilder::Node ModelBuilder::group_norm(const std::string& name, Node x, const GroupNorm& options) {
  const Shape in = shape_of(x, name);
  if (in.rank() != 3) fail(name, "group normalisation requires an input of (C, H, W), not " + to_string(in));
  if (options.groups < 1 || in[0] % options.groups != 0)
    fail(name, std::to_string(options.groups) + " groups do not divide " + std::to_string(in[0]) + " channels");
  if (in.numel() == options.groups) fail(name, "a group of one value has no variance");
  if (!(options.eps > 0)) fail(name, "eps must be positive");
  const Node node = append(name, options, {x.index}, in);
  if (!options.affine) return node;
  parameter(name + ".weight", Shape{in[0]}, node, {InitKind::constant, 1});
  parameter(name + ".bias", Shape{in[0]}, node, {InitKind::constant, 0});
  return node;
}

ModelBuilder::Node ModelBuilder::layer_norm(const std::string& name, Node x, const LayerNorm& options) {
  const Shape in = shape_of(x, name);
  if (in.rank() != 3) fail(name, "layer normalisation requires an input of (C, H, W), not " + to_string(in));
  if (in[0] == 1) fail(name, "a pixel of one value has no variance");
  if (!(options.eps > 0)) fail(name, "eps must be positive");
  const Node node = append(name, options, {x.index}, in);
  if (!options.affine) return node;
  parameter(name + ".weight", Shape{in[0]}, node, {InitKind::constant, 1});
  parameter(name + ".bias", Shape{in[0]}, node, {InitKind::constant, 0});
  return node;
}

ModelBuilder::Node ModelBuilder::instance_norm2d(const std::string& name, Node x, const InstanceNorm2d& options) {
  const Shape in = shape_of(x, name);
  if (in.rank() != 3) fail(name, "instance normalisation requires an input of (C, H, W), not " + to_string(in));
  return group_norm(name, x, {.groups = in[0], .eps = options.eps, .affine = options.affine});
}

ModelBuilder::Node ModelBuilder::linear(const std::string& name, Node x, const Linear& options) {
  const Shape in = shape_of(x, name);
  if (in.rank() != 1)
    fail(name, "a linear layer requires an input of (features), not " + to_string(in) + "; flatten first");
  if (options.out_features < 1) fail(name, "out_features must be positive");
  const Node node = append(name, options, {x.index}, Shape{options.out_features});
  const auto [weight, bias] = linear_init(options, in[0]);
  parameter(name + ".weight", Shape{options.out_features, in[0]}, node, weight);
  if (options.bias) parameter(name + ".bias", Shape{options.out_features}, node, bias);
  return node;
}

ModelBuilder::Node ModelBuilder::pointwise_linear(const std::string& name, Node x, const Linear& options) {
  const Shape in = shape_of(x, name);
  if (in.rank() != 3) fail(name, "requires an input of (C, H, W), not " + to_string(in));
  if (options.out_features < 1) fail(name, "out_features must be positive");
  const Conv2d conv{.out_channels = options.out_features, .kernel = 1, .bias = options.bias};
  const Node node = append(name, conv, {x.index}, in.without_first().prepended(options.out_features));
  const auto [weight, bias] = linear_init(options, in[0]);
  parameter(name + ".weight", Shape{options.out_features, in[0]}, node, weight);
  if (options.bias) parameter(name + ".bias", Shape{options.out_features}, node, bias);
  return node;
}

ModelBuilder::Node ModelBuilder::scale(const std::string& name, Node x, float value) {
  const Shape in = shape_of(x, name);
  if (in.rank() != 3) fail(name, "requires an input of (C, H, W), not " + to_string(in));
  const Conv2d conv{.out_channels = in[0], .kernel = 1, .groups = in[0], .bias = false};
  const Node node = append(name, conv, {x.index}, in);
  parameter(name, Shape{in[0], 1, 1}, node, {InitKind::constant, value});
  return node;
}

ModelBuilder::Node ModelBuilder::relu(Node x) {
  const Shape in = shape_of(x, "relu");
  return append("", Relu{}, {x.index}, in);
}

ModelBuilder::Node ModelBuilder::activation(Node x, const Function& function) {
  const Shape in = shape_of(x, name_of(function));
  return append("", Activation{function}, {x.index}, in);
}

ModelBuilder::Node ModelBuilder::add(Node a, Node b) {
  const Shape in = shape_of(a, "add");
  const Shape other = shape_of(b, "add");
  if (in != other) fail("add", "requires two tensors of one shape, not " + to_string(in) + " and " + to_string(other));
  if (a.index == b.index) fail("add", "requires two different nodes");
  return append("", Add{}, {a.index, b.index}, in);
}

ModelBuilder::Node ModelBuilder::subtract(Node a, Node b) {
  const Shape in = shape_of(a, "subtract");
  const Shape other = shape_of(b, "subtract");
  if (in != other)
    fail("subtract", "requires two tensors of one shape, not " + to_string(in) + " and " + to_string(other));
  if (a.index == b.index) fail("subtract", "requires two different nodes");
  return add(a, activation(b, Times{-1}));
}

ModelBuilder::Node ModelBuilder::prelu(const std::string& name, Node x, const PRelu& options) {
  const Shape in = shape_of(x, name);
  if (options.num_parameters != 1 && options.num_parameters != in[0])
    fail(name, "num_parameters must be 1 or " + std::to_string(in[0]) + ", the number of channels");
  const Node node = append(name, options, {x.index}, in);
  parameter(name + ".weight", Shape{options.num_parameters}, node, {InitKind::constant, options.init});
  return node;
}

ModelBuilder::Node ModelBuilder::softmax(Node x) {
  const Shape in = shape_of(x, "softmax");
  return append("", Softmax{}, {x.index}, in);
}

ModelBuilder::Node ModelBuilder::multiply(Node a, Node b) {
  const Shape of_a = shape_of(a, "multiply"), of_b = shape_of(b, "multiply");
  const auto spreads = [](const Shape& factor, const Shape& over) {
    if (factor == over) return true;
    if (factor.rank() != 3 || over.rank() != 3) return false;
    return factor == Shape{over[0], 1, 1} || factor == Shape{1, over[1], over[2]};
  };
  if (a.index == b.index) fail("multiply", "requires two different nodes");
  if (spreads(of_b, of_a)) return append("", Multiply{}, {a.index, b.index}, of_a);
  if (spreads(of_a, of_b)) return append("", Multiply{}, {b.index, a.index}, of_b);
  fail("multiply", "requires tensors of one shape, or one with one value for each channel or pixel of the other, not " +
                       to_string(of_a) + " and " + to_string(of_b));
}

ModelBuilder::Node ModelBuilder::concat(const std::vector<Node>& parts) {
  if (parts.size() < 2) fail("concat", "requires at least two tensors");
  std::vector<int> inputs;
  const Shape first = shape_of(parts.front(), "concat");
  std::int64_t channels = 0;
  for (const Node& part : parts) {
    const Shape shape = shape_of(part, "concat");
    if (std::ranges::count(inputs, part.index) > 0) fail("concat", "requires different nodes");
    if (shape.without_first() != first.without_first())
      fail("concat",
           "requires tensors that differ only in their channels, not " + to_string(first) + " and " + to_string(shape));
    inputs.push_back(part.index);
    channels += shape[0];
  }
  return append("", Concat{}, std::move(inputs), first.without_first().prepended(channels));
}

ModelBuilder::Node ModelBuilder::slice(Node x, std::int64_t first, std::int64_t count) {
  const Shape in = shape_of(x, "slice");
  if (first < 0 || count < 1 || first > in[0] - count)
    fail("slice", std::to_string(count) + " channels from " + std::to_string(first) + " are not in " + to_string(in));
  return append("", Slice{first, count}, {x.index}, in.without_first().prepended(count));
}

ModelBuilder::Node ModelBuilder::channel_shuffle(Node x, std::int64_t groups) {
  const Shape in = shape_of(x, "channel_shuffle");
  if (in.rank() != 3) fail("channel_shuffle", "requires an input of (C, H, W), not " + to_string(in));
  if (groups < 1 || in[0] % groups != 0)
    fail("channel_shuffle", std::to_string(groups) + " groups do not divide " + std::to_string(in[0]) + " channels");
  return append("", ChannelShuffle{groups}, {x.index}, in);
}

ModelBuilder::Node ModelBuilder::max_pool2d(Node x, const MaxPool2d& given) {
  MaxPool2d options = given;
  options.stride = given.stride.value_or(given.kernel);
  if (options.kernel.h > 15 || options.kernel.w > 15) fail("max_pool2d", "the kernel must be at most 15");
  const Shape out = pooled_shape("max_pool2d", shape_of(x, "max_pool2d"), options, options.dilation, options.ceil_mode);
  return append("", options, {x.index}, out);
}

ModelBuilder::Node ModelBuilder::avg_pool2d(Node x, const AvgPool2d& given) {
  AvgPool2d options = given;
  options.stride = given.stride.value_or(given.kernel);
  return append("", options, {x.index}, pooled_shape("avg_pool2d", shape_of(x, "avg_pool2d"), options, 1, false));
}

ModelBuilder::Node ModelBuilder::adaptive_avg_pool2d(Node x, HW output) {
  const Shape in = shape_of(x, "adaptive_avg_pool2d");
  if (in.rank() != 3) fail("adaptive_avg_pool2d", "requires an input of (C, H, W), not " + to_string(in));
  if (output.h < 1 || output.w < 1) fail("adaptive_avg_pool2d", "the output must have at least one row and column");
  return append("", AdaptiveAvgPool2d{output}, {x.index}, Shape{in[0], output.h, output.w});
}

ModelBuilder::Node ModelBuilder::upsample(Node x, const Upsample& given) {
  Upsample options = given;
  const Shape in = shape_of(x, "upsample");
  if (in.rank() != 3) fail("upsample", "requires an input of (C, H, W), not " + to_string(in));
  if (given.size.has_value() == given.scale_factor.has_value()) fail("upsample", "requires a size or a scale_factor");
  if (given.align_corners && given.mode != Upsample::Mode::bilinear)
    fail("upsample", "align_corners requires the mode bilinear");
  if (given.scale_factor) {
    const auto scaled = [&](int axis) {
      const double size = static_cast<double>(in[axis]) * *given.scale_factor;
      if (!(size >= 1 && size < kLargestSide)) fail("upsample", "scale_factor does not fit " + to_string(in));
      return static_cast<int>(size);
    };
    options.size = HW{scaled(1), scaled(2)};
  }
  const HW size = *options.size;
  if (size.h < 1 || size.w < 1 || std::max(size.h, size.w) >= kLargestSide)
    fail("upsample", "the output must have from 1 to 2^24 - 1 rows and columns");
  return append("", options, {x.index}, Shape{in[0], size.h, size.w});
}

ModelBuilder::Node ModelBuilder::zero_pad2d(Node x, const ZeroPad2d& padding) {
  const Shape in = shape_of(x, "zero_pad2d");
  if (in.rank() != 3) fail("zero_pad2d", "requires an input of (C, H, W), not " + to_string(in));
  const std::int64_t rows = in[1] + padding.top + padding.bottom, cols = in[2] + padding.left + padding.right;
  if (rows < 1 || cols < 1) fail("zero_pad2d", "nothing is left of " + to_string(in));
  return append("", padding, {x.index}, Shape{in[0], rows, cols});
}

ModelBuilder::Node ModelBuilder::dropout(const std::string& name, Node x, float p) {
  const Shape in = shape_of(x, name);
  return append(name, checked_dropout(name, in, {p}), {x.index}, in);
}
ModelBuilder::Node ModelBuilder::dropout2d(const std::string& name, Node x, float p) {
  const Shape in = shape_of(x, name);
  return append(name, checked_dropout(name, in, {p, Dropout::Unit::channel}), {x.index}, in);
}
ModelBuilder::Node ModelBuilder::stochastic_depth(const std::string& name, Node x, float p) {
  const Shape in = shape_of(x, name);
  return append(name, checked_dropout(name, in, {p, Dropout::Unit::sample}), {x.index}, in);
}

ModelBuilder::Node ModelBuilder::flatten(Node x) {
  return append("", Flatten{}, {x.index}, Shape{shape_of(x, "flatten").numel()});
}

ModelBuilder::Node ModelBuilder::reshape(Node x, std::vector<std::int64_t> sizes) {
  const Shape in = shape_of(x, "reshape");
  const auto open = std::ranges::find(sizes, -1);
  const bool follows = open != sizes.end();
  if (follows) *open = 1;
  for (const std::int64_t size : sizes)
    if (size < 1) fail("reshape", "sizes must be positive, except for one that may be -1");
  if (follows) *open = std::max<std::int64_t>(in.numel() / Shape(sizes).numel(), 1);
  const Shape to(sizes);
  if ((to.rank() != 1 && to.rank() != 3) || to.numel() != in.numel())
    fail("reshape", "requires (C, H, W) or (features) with the " + std::to_string(in.numel()) + " values of " +
                        to_string(in) + ", not " + to_string(to));
  return to.rank() == 1 ? flatten(x) : append("", Reshape{}, {x.index}, to);
}

}  // namespace dp
