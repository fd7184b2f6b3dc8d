// Operators that are layers: convolutions, matrix products, normalisations, pools, dropout.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "engine/onnx/import_graph.h"

namespace dp::importing {
namespace {

constexpr std::int64_t kLargest = 1 << 24;  // size of a window, a stride or a padding

int checked(std::int64_t value, const char* what) {
  if (value < 0 || value > kLargest) refuse("has a " + std::string(what) + " of " + std::to_string(value));
  return static_cast<int>(value);
}

// The window of a convolution or a pool, with the padding of each side.
struct Window {
  HW kernel, stride, dilation;
  int top = 0, left = 0, bottom = 0, right = 0;

  bool symmetric() const { return top == bottom && left == right; }
  HW before() const { return {top, left}; }
};

HW pair_of(const Dims& sizes, const char* what) {
  if (sizes.size() != 2)
    refuse("is not of two dimensions: it has " + std::to_string(sizes.size()) + " sizes of its " + what);
  return {checked(sizes[0], what), checked(sizes[1], what)};
}

// The padding before and behind the image for auto_pad, with which the output has ceil(size / stride) cells.
std::array<int, 2> same_padding(std::int64_t size, int kernel, int stride, int dilation, bool upper) {
  if (stride < 1) refuse("has a stride of 0");
  const std::int64_t out = (size + stride - 1) / stride;
  const std::int64_t span = std::int64_t{dilation} * (kernel - 1) + 1;
  const auto all = checked(std::max<std::int64_t>((out - 1) * stride + span - size, 0), "padding");
  return upper ? std::array{all / 2, all - all / 2} : std::array{all - all / 2, all / 2};
}

Window window_of(const onnx::NodeProto& node, const Term& x, const Dims& kernel) {
  Window window{pair_of(kernel, "kernel"), pair_of(ints_of(node, "strides", {1, 1}), "stride"),
                pair_of(ints_of(node, "dilations", {1, 1}), "dilation")};
  const std::string automatic = text_of(node, "auto_pad", "NOTSET");
  if (automatic == "NOTSET") {
    const Dims pads = ints_of(node, "pads", {0, 0, 0, 0});
    if (pads.size() != 4) refuse("is not of two dimensions: it has " + std::to_string(pads.size()) + " pads");
    window.top = checked(pads[0], "padding"), window.left = checked(pads[1], "padding");
    window.bottom = checked(pads[2], "padding"), window.right = checked(pads[3], "padding");
  } else if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
    const bool upper = automatic == "SAME_UPPER";
    const auto rows = same_padding(x.dims[2], window.kernel.h, window.stride.h, window.dilation.h, upper);
    const auto cols = same_padding(x.dims[3], window.kernel.w, window.stride.w, window.dilation.w, upper);
    window.top = rows[0], window.bottom = rows[1], window.left = cols[0], window.right = cols[1];
  } else if (automatic != "VALID") {
    refuse("has an unknown auto_pad " + in_quotes(automatic));
  }
  return window;
}

const Term& image(const Call& call) {
  const Term& x = call.term(0);
  if (!is_image(x) || x.layout != Layout::plain) refuse("requires an input of (N, C, H, W), not " + to_string(x.dims));
  return x;
}

// The size of the output along one side.
std::int64_t cells(std::int64_t size, int kernel, int stride, int dilation, int pads, bool ceil_mode) {
  const std::int64_t room = size + pads - std::int64_t{dilation} * (kernel - 1) - 1;
  if (stride < 1 || kernel < 1 || dilation < 1 || room < 0) refuse("has a window that does not fit its input");
  return (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
}

// The bias, or null if there is none. Exporters may write zeros with a generated name for a layer without a bias.
ConstantPtr bias_of(const Call& call, std::size_t i, std::int64_t channels) {
  const ConstantPtr bias = call.constant_or_null(i);
  if (!bias && call.has(i)) refuse("has a bias that is no weight of the file");
  if (!bias) return nullptr;
  if (bias->count() != channels)
    refuse("has a bias of " + to_string(bias->dims) + " for " + std::to_string(channels) + " outputs");
  return !Builder::is_weight(*bias, "bias") && bias->filled_with(0) ? nullptr : bias;
}

void add_sources(Builder& net, const std::string& name, const ConstantPtr& weight, const ConstantPtr& bias,
                 bool transposed = false) {
  net.sources[name + ".weight"] = {weight, transposed};
  if (bias) net.sources[name + ".bias"] = {bias};
}

Value convolution(const Call& call) {
  const Term& x = image(call);
  const ConstantPtr weight = call.constant(1);
  if (weight->dims.size() != 4) refuse("is not of two dimensions: its weight has the shape " + to_string(weight->dims));
  const Dims kernel{weight->dims[2], weight->dims[3]};
  if (ints_of(call.node, "kernel_shape", kernel) != kernel) refuse("has a kernel_shape that is not its weight's");
  const Window window = window_of(call.node, x, kernel);
  const ConstantPtr bias = bias_of(call, 2, weight->dims[0]);
  Conv2d conv{.out_channels = weight->dims[0],
              .kernel = window.kernel,
              .stride = window.stride,
              .dilation = window.dilation,
              .groups = int_of(call.node, "group", 1),
              .bias = bias != nullptr};
  if (conv.groups < 1 || x.dims[1] % conv.groups != 0 || weight->dims[1] != x.dims[1] / conv.groups)
    refuse("has a weight of " + to_string(weight->dims) + " for " + std::to_string(x.dims[1]) + " channels in " +
           std::to_string(conv.groups) + " groups");
  // PyTorch's padding='same' may be uneven. Any other uneven padding becomes a layer of zeros before the convolution.
  const auto is_same = [&](int HW::*side, int before, int behind) {
    const std::int64_t all = std::int64_t{window.dilation.*side} * (window.kernel.*side - 1);
    return before == all / 2 && before + behind == all;
  };
  const bool same =
      window.stride == 1 && is_same(&HW::h, window.top, window.bottom) && is_same(&HW::w, window.left, window.right);
  const bool apart = !window.symmetric() && !same;
  if (!apart) conv.padding = window.symmetric() ? Padding(window.before()) : kSamePadding;
  const auto side = [&](std::size_t axis, int HW::*of, int pads) {
    return cells(x.dims[axis], window.kernel.*of, window.stride.*of, window.dilation.*of, pads, false);
  };
  const Dims dims{x.dims[0], conv.out_channels, side(2, &HW::h, window.top + window.bottom),
                  side(3, &HW::w, window.left + window.right)};
  if (weight->name.find("::") != std::string::npos || (bias && bias->name.ends_with(".weight_bias")))
    ++call.graph.renamed_convolutions;
  const ZeroPad2d pad{window.left, window.right, window.top, window.bottom};
  return call.layer(dims, Layout::plain, {call.inputs[0].term},
                    [=, &node = call.node](Builder& net, const std::vector<Node>& in) {
                      const std::string name = net.layer_name(node, {{weight.get(), "weight"}, {bias.get(), "bias"}});
                      add_sources(net, name, weight, bias);
                      return net.conv2d(name, apart ? net.zero_pad2d(in[0], pad) : in[0], conv);
                    });
}

Value transposed_convolution(const Call& call) {
  const Term& x = image(call);
  const ConstantPtr weight = call.constant(1);
  if (weight->dims.size() != 4) refuse("is not of two dimensions: its weight has the shape " + to_string(weight->dims));
  if (attribute(call.node, "output_shape", onnx::AttributeProto::INTS) != nullptr ||
      text_of(call.node, "auto_pad", "NOTSET") != "NOTSET")
    refuse("has an output_shape or auto_pad; only pads and output_padding are accepted");
  const Window window = window_of(call.node, x, {weight->dims[2], weight->dims[3]});
  if (!window.symmetric()) refuse("has uneven pads");
  const std::int64_t groups = int_of(call.node, "group", 1);
  if (groups < 1 || weight->dims[0] != x.dims[1] || weight->dims[1] > kLargest || groups > kLargest)
    refuse("has a weight of " + to_string(weight->dims) + " for " + std::to_string(x.dims[1]) + " channels");
  const std::int64_t out = weight->dims[1] * groups;
  const ConstantPtr bias = bias_of(call, 2, out);
  const ConvTranspose2d conv{.out_channels = out,
                             .kernel = window.kernel,
                             .stride = window.stride,
                             .padding = window.before(),
                             .output_padding = pair_of(ints_of(call.node, "output_padding", {0, 0}), "output_padding"),
                             .groups = groups,
                             .bias = bias != nullptr,
                             .dilation = window.dilation};
  const auto side = [&](std::size_t axis, int HW::*of) {
    return (x.dims[axis] - 1) * (conv.stride.*of) - 2 * std::int64_t{conv.padding.*of} +
           std::int64_t{conv.dilation.*of} * (conv.kernel.*of - 1) + 1 + conv.output_padding.*of;
  };
  return call.layer({x.dims[0], out, side(2, &HW::h), side(3, &HW::w)}, Layout::plain, {call.inputs[0].term},
                    [=, &node = call.node](Builder& net, const std::vector<Node>& in) {
                      const std::string name = net.layer_name(node, {{weight.get(), "weight"}, {bias.get(), "bias"}});
                      add_sources(net, name, weight, bias);
                      return net.conv_transpose2d(name, in[0], conv);
                    });
}

// A linear layer of features, or of the channels of each pixel. `transposed`: the file has the weight as (in, out).
Value linear(const Call& call, int from, const ConstantPtr& weight, const ConstantPtr& bias, bool transposed) {
  const Term& x = call.graph.of(from);
  Dims dims = x.dims;
  const std::int64_t in = weight->dims[transposed ? 0 : 1], out = weight->dims[transposed ? 1 : 0];
  if (dims.back() != in)
    refuse("has a weight of " + to_string(weight->dims) + " for " + std::to_string(dims.back()) + " features");
  dims.back() = out;
  const bool pixels = dims.size() == 4;
  return call.layer(dims, x.layout, {from}, [=, &node = call.node](Builder& net, const std::vector<Node>& input) {
    const std::string name = net.layer_name(node, {{weight.get(), "weight"}, {bias.get(), "bias"}});
    add_sources(net, name, weight, bias, transposed);
    const Linear options{.out_features = out, .bias = bias != nullptr};
    return pixels ? net.pointwise_linear(name, input[0], options) : net.linear(name, input[0], options);
  });
}

Value gemm(const Call& call) {
  const Term& x = call.term(0);
  const ConstantPtr weight = call.constant(1);
  if (!is_features(x) || weight->dims.size() != 2 || int_of(call.node, "transA", 0) != 0)
    return call.without_layer({}, "multiplies other tensors than (N, features) and a weight");
  if (float_of(call.node, "alpha", 1) != 1 || (call.has(2) && float_of(call.node, "beta", 1) != 1))
    refuse("has an alpha or beta other than 1");
  const bool transposed = int_of(call.node, "transB", 0) == 0;
  return linear(call, call.inputs[0].term, weight, bias_of(call, 2, weight->dims[transposed ? 1 : 0]), transposed);
}

// Whether a product with the matrix averages `size` rows (or columns) to `cells` of them, as AdaptiveAvgPool2d does.
bool averages(const Constant& matrix, std::int64_t size, std::int64_t cells, bool transposed) {
  for (std::int64_t cell = 0; cell < cells; ++cell) {
    const std::int64_t begin = cell * size / cells, end = ((cell + 1) * size + cells - 1) / cells;
    for (std::int64_t i = 0; i < size; ++i) {
      const double share = i >= begin && i < end ? 1.0 / static_cast<double>(end - begin) : 0.0;
      const double given = matrix.at(transposed ? i * cells + cell : cell * size + i);
      if (!(given - share < 1e-6 && share - given < 1e-6)) return false;
    }
  }
  return true;
}

Value matrix_product(const Call& call) {
  const ConstantPtr left = call.constant_or_null(0), right = call.constant_or_null(1);
  // dp itself writes AdaptiveAvgPool2d as two products: `left` averages rows, and the next one columns.
  if (left && left->dims.size() == 2 && call.has_term(1)) {
    const Term& x = call.term(1);
    if (!is_image(x) || x.layout != Layout::plain || left->dims[1] != x.dims[2]) return call.without_layer({});
    return call.without_layer(Dims{x.dims[0], x.dims[1], left->dims[0], x.dims[3]});
  }
  if (!right || right->dims.size() != 2 || !call.has_term(0))
    return call.without_layer({}, "multiplies two tensors that the network computes; only a weight is accepted");
  const Term& x = call.term(0);
  if (is_features(x) || (is_image(x) && x.layout == Layout::channels_last))
    return linear(call, call.inputs[0].term, right, nullptr, true);
  if (x.op == "MatMul" && x.operands.size() == 2 && x.operands[0].constant && x.operands[1].term >= 0) {
    const Term& in = call.graph.of(x.operands[1]);
    const std::int64_t h = x.dims[2], w = right->dims[1];
    if (right->dims[0] == in.dims[3] && averages(*x.operands[0].constant, in.dims[2], h, false) &&
        averages(*right, in.dims[3], w, true) && h <= kLargest && w <= kLargest)
      return call.layer({in.dims[0], in.dims[1], h, w}, Layout::plain, {x.operands[1].term},
                        [=](Builder& net, const std::vector<Node>& input) {
                          return net.adaptive_avg_pool2d(input[0], {static_cast<int>(h), static_cast<int>(w)});
                        });
  }
  return call.without_layer({}, "multiplies other tensors than (N, features) or (N, H, W, C) and a weight");
}

// --- normalisations --------------------------------------------------------------------------------------------------

// Whether a normalisation has weights. For layers with affine=False, exporters write constants of ones and zeros.
bool is_affine(const Constant& weight, const Constant& bias) {
  return Builder::is_weight(weight, "weight") || Builder::is_weight(bias, "bias") || !weight.filled_with(1) ||
         !bias.filled_with(0);
}

Value batch_norm(const Call& call) {
  const Term& x = call.term(0);
  if (!is_image(x) && !is_features(x)) return call.without_layer({});
  if (x.layout != Layout::plain) refuse("requires an input of (N, C, H, W), not (N, H, W, C)");
  std::array<ConstantPtr, 4> weights;  // weight, bias, mean, variance
  for (std::size_t i = 0; i < 4; ++i) {
    weights[i] = call.constant(i + 1);
    if (weights[i]->count() != x.dims[1])
      refuse("has weights for other than " + std::to_string(x.dims[1]) + " channels");
  }
  const bool affine = is_affine(*weights[0], *weights[1]);
  const BatchNorm2d norm{.eps = shortest(float_of(call.node, "epsilon", 1e-5f)),
                         .momentum = 1 - shortest(float_of(call.node, "momentum", 0.9f)),
                         .affine = affine};
  const bool features = is_features(x);
  return call.layer({call.inputs[0].term}, [=, &node = call.node](Builder& net, const std::vector<Node>& in) {
    const std::string name = net.layer_name(node, {{weights[0].get(), "weight"},
                                                   {weights[1].get(), "bias"},
                                                   {weights[2].get(), "running_mean"},
                                                   {weights[3].get(), "running_var"}});
    if (affine) add_sources(net, name, weights[0], weights[1]);
    net.sources[name + ".running_mean"] = {weights[2]};
    net.sources[name + ".running_var"] = {weights[3]};
    return net.as_before(net.batch_norm2d(name, net.as_image(in[0]), norm), features);
  });
}

// A GroupNorm over `groups`, with a weight and a bias or without.
Value group_norm(const Call& call, int from, std::int64_t groups, double eps, const ConstantPtr& weight,
                 const ConstantPtr& bias) {
  const GroupNorm norm{.groups = groups, .eps = eps, .affine = weight != nullptr};
  return call.layer({from}, [=, &node = call.node](Builder& net, const std::vector<Node>& in) {
    const std::string name = net.layer_name(node, {{weight.get(), "weight"}, {bias.get(), "bias"}});
    if (weight) add_sources(net, name, weight, bias);
    return net.group_norm(name, in[0], norm);
  });
}

Value instance_norm(const Call& call) {
  const Term& x = call.term(0);
  const ConstantPtr weight = call.constant(1), bias = call.constant(2);
  if (x.dims.size() < 3) return call.without_layer({});
  if (weight->count() != x.dims[1] || bias->count() != x.dims[1])
    refuse("has weights for other than " + std::to_string(x.dims[1]) + " channels");
  const bool affine = is_affine(*weight, *bias);
  if (is_image(x) && x.layout == Layout::plain)
    return group_norm(call, call.inputs[0].term, x.dims[1], shortest(float_of(call.node, "epsilon", 1e-5f)),
                      affine ? weight : nullptr, affine ? bias : nullptr);
  // Of (N, groups, values): a step of GroupNorm, which exporters write with Reshape before and behind it.
  if (affine) return call.without_layer({}, "has a weight for each group of channels");
  return call.without_layer(x.dims);
}

Value group_normalization(const Call& call) {
  const Term& x = image(call);
  const std::int64_t groups = int_of(call.node, "num_groups", 0);
  ConstantPtr weight = call.constant(1), bias = call.constant(2);
  if (weight->count() != x.dims[1] || bias->count() != x.dims[1]) {
    if (is_affine(*weight, *bias)) refuse("has a weight for each group; only one for each channel is accepted");
    weight = bias = nullptr;
  }
  return group_norm(call, call.inputs[0].term, groups, shortest(float_of(call.node, "epsilon", 1e-5f)), weight, bias);
}

Value layer_norm(const Call& call) {
  const Term& x = call.term(0);
  const ConstantPtr weight = call.constant(1), bias = call.constant_or_null(2);
  const std::int64_t axis = int_of(call.node, "axis", -1);
  const bool pixels = is_image(x) && x.layout == Layout::channels_last && axis_of(axis, 4) == 3;
  if (!pixels && !(is_features(x) && axis_of(axis, 2) == 1))
    return call.without_layer({}, "normalises more than the channels of (N, H, W, C) or (N, features)");
  const std::int64_t channels = x.dims[channel_axis(x)];
  if (weight->count() != channels || (bias && bias->count() != channels))
    refuse("has weights of another size than its input");
  const bool affine =
      bias ? is_affine(*weight, *bias) : Builder::is_weight(*weight, "weight") || !weight->filled_with(1);
  const LayerNorm norm{.eps = shortest(float_of(call.node, "epsilon", 1e-5f)), .affine = affine};
  const bool features = is_features(x);
  return call.layer({call.inputs[0].term}, [=, &node = call.node](Builder& net, const std::vector<Node>& in) {
    const std::string name = net.layer_name(node, {{weight.get(), "weight"}, {bias.get(), "bias"}});
    if (affine) add_sources(net, name, weight, bias);  // without a bias: zeros
    return net.as_before(net.layer_norm(name, net.as_image(in[0]), norm), features);
  });
}

// --- pools and dropout -----------------------------------------------------------------------------------------------

Value max_pool(const Call& call) {
  const Term& x = image(call);
  const Window window = window_of(call.node, x, ints_of(call.node, "kernel_shape", {}));
  const bool ceil_mode = int_of(call.node, "ceil_mode", 0) != 0;
  MaxPool2d pool{.kernel = window.kernel,
                 .stride = window.stride,
                 .padding = window.before(),
                 .dilation = window.dilation,
                 .ceil_mode = ceil_mode};
  const auto side = [&](std::size_t axis, int HW::*of, int before, int behind) {
    const std::int64_t out =
        cells(x.dims[axis], window.kernel.*of, window.stride.*of, window.dilation.*of, before + behind, ceil_mode);
    // PyTorch drops a last window that would begin behind the image.
    return ceil_mode && (out - 1) * (window.stride.*of) >= x.dims[axis] + before ? out - 1 : out;
  };
  const Dims dims{x.dims[0], x.dims[1], side(2, &HW::h, window.top, window.bottom),
                  side(3, &HW::w, window.left, window.right)};
  // More padding behind the image than before it completes the last window: this is ceil_mode. If the padding is not
  // exactly that, the shapes of the second pass differ, and the file is refused.
  if (!window.symmetric()) {
    if (window.bottom < window.top || window.right < window.left)
      refuse("has more padding before the image than behind it");
    pool.ceil_mode = true;
  }
  return call.layer(dims, Layout::plain, {call.inputs[0].term},
                    [=](Builder& net, const std::vector<Node>& in) { return net.max_pool2d(in[0], pool); });
}

Value average_pool(const Call& call) {
  const Term& x = image(call);
  const Window window = window_of(call.node, x, ints_of(call.node, "kernel_shape", {}));
  if (!(window.dilation == 1)) refuse("has a dilation");
  const bool padded = window.top + window.bottom + window.left + window.right > 0;
  if (padded && int_of(call.node, "count_include_pad", 0) == 0)
    refuse("leaves its padding out of the mean (count_include_pad=0); only 1 is accepted");
  if (!window.symmetric()) refuse("has uneven pads");
  const bool ceil_mode = int_of(call.node, "ceil_mode", 0) != 0;
  const auto side = [&](std::size_t axis, int HW::*of, int pads, bool ceil) {
    return cells(x.dims[axis], window.kernel.*of, window.stride.*of, 1, pads, ceil);
  };
  const auto dims = [&](bool ceil) {
    return Dims{x.dims[0], x.dims[1], side(2, &HW::h, window.top + window.bottom, ceil),
                side(3, &HW::w, window.left + window.right, ceil)};
  };
  if (ceil_mode && dims(true) != dims(false)) refuse("has incomplete windows (ceil_mode)");
  const AvgPool2d pool{window.kernel, window.stride, window.before()};
  return call.layer(dims(false), Layout::plain, {call.inputs[0].term},
                    [=](Builder& net, const std::vector<Node>& in) { return net.avg_pool2d(in[0], pool); });
}

// The mean or the maximum over rows and columns.
Value global_pool(const Call& call, bool maximum, bool keeps_pixels) {
  const Term& x = call.term(0);
  if (!is_image(x)) refuse("requires an input of (N, C, H, W), not " + to_string(x.dims));
  const std::size_t rows = channel_axis(x) == 1 ? 2 : 1;
  const HW window{checked(x.dims[rows], "height"), checked(x.dims[rows + 1], "width")};
  Dims dims = x.dims;
  dims[rows] = dims[rows + 1] = 1;
  if (!keeps_pixels) dims = {x.dims[0], x.dims[channel_axis(x)]};
  return call.layer(dims, keeps_pixels ? x.layout : Layout::plain, {call.inputs[0].term},
                    [=](Builder& net, const std::vector<Node>& in) {
                      const Node pixel =
                          maximum ? net.max_pool2d(in[0], {.kernel = window}) : net.global_avg_pool2d(in[0]);
                      return keeps_pixels ? pixel : net.flatten(pixel);
                    });
}

Value reduction(const Call& call, bool maximum) {
  const Term& x = call.term(0);
  const bool keeps = int_of(call.node, "keepdims", 1) != 0;
  std::vector<std::int64_t> axes = call.axes("axes", 1).value_or(Dims());
  if (axes.empty() || x.dims.empty()) return call.without_layer({}, "has no axes");
  if (over_pixels(x, axes)) return global_pool(call, maximum, keeps);
  Dims dims = x.dims;
  for (std::int64_t& axis : axes) axis = axis_of(axis, dims.size());
  std::ranges::sort(axes);
  for (const std::int64_t axis : axes) dims[static_cast<std::size_t>(axis)] = 1;
  if (!keeps) return call.without_layer({}, "reduces other axes than the rows and columns");
  Value value = call.without_layer(dims, "reduces other axes than the rows and columns");
  call.graph.terms.back().axes = axes;
  return value;
}

Value dropout(const Call& call) {
  const Term& x = call.term(0);
  const double p = call.has(1) ? call.number(1) : 0.5;
  if (!(p >= 0 && p < 1)) refuse("has a ratio of " + std::to_string(p) + "; it must be in [0, 1)");
  if (!x.build || p == 0) return call.same(call.inputs[0].term);
  return call.layer({call.inputs[0].term}, [=, &node = call.node](Builder& net, const std::vector<Node>& in) {
    return net.dropout(net.layer_name(node, {}), in[0], static_cast<float>(p));
  });
}

}  // namespace

std::optional<Value> with_bias(const Call& call, const Term& product, const ConstantPtr& bias) {
  if (product.op != "MatMul" || !product.build || product.operands.size() != 2 || !product.operands[1].constant ||
      product.operands[0].term < 0)
    return std::nullopt;
  const ConstantPtr weight = product.operands[1].constant;
  if (!per_channel(*bias, product) || bias->count() != weight->dims[1]) return std::nullopt;
  const Call of_product{call.graph, *product.node, product.operands};
  return linear(of_product, product.operands[0].term, weight, bias, true);
}

std::optional<Value> recognise_layer(const Call& call) {
  const std::string& op = call.node.op_type();
  if (op == "Conv") return convolution(call);
  if (op == "ConvTranspose") return transposed_convolution(call);
  if (op == "Gemm") return gemm(call);
  if (op == "MatMul") return matrix_product(call);
  if (op == "BatchNormalization") return batch_norm(call);
  if (op == "InstanceNormalization") return instance_norm(call);
  if (op == "GroupNormalization") return group_normalization(call);
  if (op == "LayerNormalization") return layer_norm(call);
  if (op == "MaxPool") return max_pool(call);
  if (op == "AveragePool") return average_pool(call);
  if (op == "GlobalAveragePool" || op == "GlobalMaxPool") return global_pool(call, op == "GlobalMaxPool", true);
  if (op == "ReduceMean" || op == "ReduceMax") return reduction(call, op == "ReduceMax");
  if (op == "Dropout") return dropout(call);
  return std::nullopt;
}

}  // namespace dp::importing
