// Operators that only move values: Reshape, Transpose, Slice, Concat, Pad, Resize and others.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "engine/onnx/import_graph.h"

namespace dp::importing {
namespace {

int checked(std::int64_t value) {
  if (value < -(1 << 24) || value > (1 << 24)) refuse("has a size of " + std::to_string(value));
  return static_cast<int>(value);
}

// Other dimensions in the file, but the same tensor in dp: no layer.
Value view(const Call& call, int from, Dims dims, Layout layout) {
  return call.layer(std::move(dims), layout, {from}, [](Builder&, const std::vector<Node>& in) { return in[0]; });
}

Value to_layer_shape(const Call& call, int from, const Dims& dims) {
  return call.layer(dims, Layout::plain, {from}, [dims](Builder& net, const std::vector<Node>& in) {
    return net.reshape(in[0], std::vector<std::int64_t>(dims.begin() + 1, dims.end()));
  });
}

// Exporters write GroupNorm as Reshape to (N, groups, values), InstanceNormalization, and Reshape back to `dims`. The
// call is the last of them; nullopt if it is another Reshape.
std::optional<Value> group_norm_in(const Call& call, const Term& norm, const Dims& dims) {
  if (norm.op != "InstanceNormalization" || norm.build || norm.dims.size() != 3 || norm.operands.at(0).term < 0)
    return std::nullopt;
  const Term& groups = call.graph.of(norm.operands[0]);
  if (groups.op != "Reshape" || groups.operands.at(0).term < 0) return std::nullopt;
  const int from = groups.operands[0].term;
  const Term& x = call.graph.of(from);
  if (!is_image(x) || x.layout != Layout::plain || x.dims != dims) return std::nullopt;
  const GroupNorm options{
      .groups = norm.dims[1], .eps = shortest(float_of(*norm.node, "epsilon", 1e-5f)), .affine = false};
  const Value value = call.layer({from}, [=, &node = call.node](Builder& net, const std::vector<Node>& in) {
    return net.group_norm(net.layer_name(node, {}), in[0], options);
  });
  Term& made = call.graph.terms.back();
  made.op = "group_norm", made.eps = options.eps, made.groups = options.groups;
  return value;
}

Value transpose(const Call& call) {
  const Term& x = call.term(0);
  const int from = call.inputs[0].term;
  Dims perm(x.dims.size());
  std::iota(perm.rbegin(), perm.rend(), 0);
  perm = ints_of(call.node, "perm", perm);
  if (perm.size() != x.dims.size()) refuse("has a perm of another rank than its input");
  Dims dims;
  for (const std::int64_t axis : perm) dims.push_back(x.dims[static_cast<std::size_t>(axis_of(axis, perm.size()))]);
  if (std::ranges::is_sorted(perm)) return call.same(from);
  if (x.dims.size() == 4 && x.layout == Layout::plain && perm == Dims{0, 2, 3, 1})
    return view(call, from, dims, Layout::channels_last);
  if (x.layout == Layout::channels_last && perm == Dims{0, 3, 1, 2}) return view(call, from, dims, Layout::plain);
  if (x.layout == Layout::grouped && perm == Dims{0, 2, 1, 3, 4}) return view(call, from, dims, Layout::shuffled);
  return call.without_layer(dims, "moves axes in another way than between (N, C, H, W) and (N, H, W, C)");
}

// Part of an axis.
struct Range {
  std::int64_t first, count;
};
Range range_of(std::int64_t first, std::int64_t last, std::int64_t size) {
  const auto bounded = [&](std::int64_t i) { return std::clamp<std::int64_t>(i < 0 ? i + size : i, 0, size); };
  const std::int64_t begin = bounded(first);
  return {begin, bounded(last) - begin};
}

// A range of channels, rows or columns.
Value cut(const Call& call, int from, std::size_t axis, const Range& range) {
  const Term& x = call.graph.of(from);
  Dims dims = x.dims;
  if (range.first == 0 && range.count == dims[axis]) return call.same(from);
  if (range.count < 1) refuse("leaves nothing of " + to_string(dims));
  if (axis == 0 || (!is_image(x) && !is_features(x))) return call.without_layer({}, "slices the batch");
  const std::int64_t behind = dims[axis] - range.first - range.count;
  dims[axis] = range.count;
  if (axis == channel_axis(x))
    return call.layer(dims, x.layout, {from}, [=](Builder& net, const std::vector<Node>& in) {
      return net.slice(in[0], range.first, range.count);
    });
  const int before = -checked(range.first), after = -checked(behind);
  const bool rows = axis + 1 == (x.layout == Layout::plain ? 3U : 2U);
  const ZeroPad2d crop = rows ? ZeroPad2d{0, 0, before, after} : ZeroPad2d{before, after, 0, 0};
  return call.layer(dims, x.layout, {from},
                    [=](Builder& net, const std::vector<Node>& in) { return net.zero_pad2d(in[0], crop); });
}

Value slice(const Call& call) {
  const std::vector<std::int64_t> first = call.integers(1), last = call.integers(2);
  Dims axes(first.size());
  std::iota(axes.begin(), axes.end(), 0);
  if (call.has(3)) axes = call.integers(3);
  if (last.size() != first.size() || axes.size() != first.size())
    refuse("has starts, ends and axes of different sizes");
  if (call.has(4))
    for (const std::int64_t step : call.integers(4))
      if (step != 1) refuse("has a step of " + std::to_string(step) + "; only 1 is accepted");
  Value value{call.inputs[0].term};
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const Term& x = call.graph.of(value);
    if (x.dims.empty()) break;
    const auto axis = static_cast<std::size_t>(axis_of(axes[i], x.dims.size()));
    value = cut(call, value.term, axis, range_of(first[i], last[i], x.dims[axis]));
  }
  return value;
}

Value concat(const Call& call) {
  std::vector<int> from;
  const Term& first = call.term(0);
  Dims dims = first.dims;
  if (!is_image(first) && !is_features(first)) return call.without_layer({});
  const std::size_t axis = channel_axis(first);
  if (static_cast<std::size_t>(axis_of(int_of(call.node, "axis", 0), dims.size())) != axis)
    return call.without_layer({}, "joins tensors along another axis than the channels");
  dims[axis] = 0;
  for (std::size_t i = 0; i < call.count(); ++i) {
    const Term& part = call.term(i);
    if (part.layout != first.layout || part.dims.size() != dims.size()) refuse("joins tensors of different layouts");
    dims[axis] += part.dims[axis];
    from.push_back(call.inputs[i].term);
  }
  if (from.size() == 1) return call.same(from[0]);
  const Layout layout = first.layout;
  return call.layer(dims, layout, from, [](Builder& net, const std::vector<Node>& in) { return net.concat(in); });
}

Value pad(const Call& call) {
  const Term& x = call.term(0);
  const std::vector<std::int64_t> given = call.integers(1);
  const std::size_t rank = x.dims.size();
  Dims axes(rank);
  std::iota(axes.begin(), axes.end(), 0);
  if (call.has(3)) axes = call.integers(3);
  if (given.size() != 2 * axes.size())
    refuse("has " + std::to_string(given.size()) + " pads for " + std::to_string(axes.size()) + " axes");
  Dims before(rank), behind(rank), dims = x.dims;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<std::size_t>(axis_of(axes[i], rank));
    before[axis] = checked(given[i]), behind[axis] = checked(given[axes.size() + i]);
  }
  for (std::size_t axis = 0; axis < rank; ++axis) dims[axis] += before[axis] + behind[axis];
  if (dims == x.dims && std::ranges::count(before, 0) == static_cast<std::ptrdiff_t>(rank))
    return call.same(call.inputs[0].term);
  if (text_of(call.node, "mode", "constant") != "constant")
    return call.without_layer({}, "pads with other values than zeros");
  const double value = call.has(2) ? call.number(2) : 0;
  if (!is_image(x) || x.layout != Layout::plain || before[0] != 0 || behind[0] != 0 || before[1] != 0 || behind[1] != 0)
    return call.without_layer({}, "pads other axes than rows and columns");
  const ZeroPad2d padding{checked(before[3]), checked(behind[3]), checked(before[2]), checked(behind[2])};
  if (value != 0) return call.without_layer({}, "pads with other values than zeros");
  return call.layer(dims, Layout::plain, {call.inputs[0].term},
                    [=](Builder& net, const std::vector<Node>& in) { return net.zero_pad2d(in[0], padding); });
}

Value resize(const Call& call) {
  const Term& x = call.term(0);
  if (!is_image(x) || x.layout != Layout::plain) return call.without_layer({}, "resamples other than (N, C, H, W)");
  const std::string mode = text_of(call.node, "mode", "nearest");
  const std::string places = text_of(call.node, "coordinate_transformation_mode", "half_pixel");
  if (int_of(call.node, "antialias", 0) != 0 || attribute(call.node, "axes", onnx::AttributeProto::INTS) != nullptr)
    return call.without_layer({}, "resamples with antialias or axes");
  const bool nearest = mode == "nearest" && places == "asymmetric" &&
                       text_of(call.node, "nearest_mode", "round_prefer_floor") == "floor";
  const bool aligned = places == "align_corners";
  const bool linear = mode == "linear" && (aligned || places == "half_pixel" || places == "pytorch_half_pixel");
  if (!nearest && !linear)
    return call.without_layer({}, "resamples in another way than torch.nn.Upsample's nearest and bilinear");
  Upsample upsample{.mode = nearest ? Upsample::Mode::nearest : Upsample::Mode::bilinear, .align_corners = aligned};
  Dims dims = x.dims;
  if (call.has(3)) {
    const std::vector<std::int64_t> sizes = call.integers(3);
    if (sizes.size() != 4 || sizes[0] != dims[0] || sizes[1] != dims[1]) refuse("resamples more than rows and columns");
    dims = sizes;
  } else {
    const ConstantPtr scales = call.constant(2);
    if (scales->count() != 4 || scales->at(0) != 1 || scales->at(1) != 1)
      refuse("resamples more than rows and columns");
    for (std::size_t axis = 2; axis < 4; ++axis) {
      const double size = std::floor(static_cast<double>(dims[axis]) * scales->at(static_cast<std::int64_t>(axis)));
      if (!(size >= 1 && size < (1 << 24))) refuse("has a size of " + std::to_string(size));
      dims[axis] = static_cast<std::int64_t>(size);
    }
    const double scale = shortest(static_cast<float>(scales->at(2)));
    const auto fits = [&](std::size_t axis) {
      return std::floor(static_cast<double>(x.dims[axis]) * scale) == static_cast<double>(dims[axis]);
    };
    const bool whole = dims[2] % x.dims[2] == 0 && dims[3] % x.dims[3] == 0;
    if (!aligned && !whole && scales->at(2) == scales->at(3) && fits(2) && fits(3)) upsample.scale_factor = scale;
  }
  if (!upsample.scale_factor) upsample.size = HW{checked(dims[2]), checked(dims[3])};
  return call.layer(dims, Layout::plain, {call.inputs[0].term},
                    [=](Builder& net, const std::vector<Node>& in) { return net.upsample(in[0], upsample); });
}

// Two patterns. dp itself writes some upsampling as one Gather of rows and one of columns. PyTorch's as_strided is a
// Gather from a flat tensor; it is accepted if it leaves every value in its place.
Value gather(const Call& call) {
  const Term& x = call.term(0);
  const ConstantPtr indices = call.constant(1);
  const auto axis = static_cast<std::size_t>(axis_of(int_of(call.node, "axis", 0), x.dims.size()));
  if (x.dims.size() == 1 && x.op == "Reshape" && x.operands.at(0).term >= 0) {
    const Term& whole = call.graph.of(x.operands[0]);
    bool in_place = whole.layout == Layout::plain && indices->dims.size() == whole.dims.size() &&
                    indices->count() == x.dims[0] && indices->dims == whole.dims;
    for (std::int64_t i = 0; in_place && i < indices->count(); ++i) in_place = indices->at(i) == static_cast<double>(i);
    if (in_place) return call.same(x.operands[0].term);
  }
  if (x.dims.size() != 4 || axis < 2 || indices->dims.size() != 1)
    return call.without_layer({}, "picks values by their indices");
  Dims dims = x.dims;
  dims[axis] = indices->count();
  if (axis == 3 && x.op == "Gather" && !x.build && x.operands[0].term >= 0) {
    const Term& image = call.graph.of(x.operands[0]);
    const ConstantPtr rows = x.operands[1].constant;
    const HW size{checked(dims[2]), checked(dims[3])};
    const auto nearest = [](const Constant& cells, std::int64_t from) {
      for (std::int64_t i = 0; i < cells.count(); ++i) {
        const std::int64_t source = i * from / cells.count();
        if (cells.at(i) != static_cast<double>(source)) return false;
      }
      return cells.count() > 0;
    };
    if (is_image(image) && image.layout == Layout::plain && rows && nearest(*rows, image.dims[2]) &&
        nearest(*indices, image.dims[3]))
      return call.layer(dims, Layout::plain, {x.operands[0].term},
                        [=](Builder& net, const std::vector<Node>& in) { return net.upsample(in[0], {.size = size}); });
  }
  return call.without_layer(dims, "picks rows or columns by their indices");
}

Value squeeze(const Call& call) {
  const Term& x = call.term(0);
  const auto axes = call.axes("axes", 1);
  if (!axes) return call.without_layer({}, "names no axes");
  return reshaped(call, squeezed_dims(x.dims, *axes, call.node.op_type() == "Unsqueeze"));
}

}  // namespace

Value reshaped(const Call& call, const Dims& dims) {
  const Term& x = call.term(0);
  const int from = call.inputs[0].term;
  if (count_of(dims) != count_of(x.dims)) refuse("reshapes " + to_string(x.dims) + " to " + to_string(dims));
  if (dims == x.dims) return call.same(from);
  if (const auto norm = group_norm_in(call, x, dims)) return *norm;
  const bool batch = !dims.empty() && dims[0] == x.dims[0];
  const bool pixels = is_image(x) && x.layout == Layout::channels_last;
  const bool one_pixel = pixels && x.dims[1] == 1 && x.dims[2] == 1;
  const bool in_order = (x.layout == Layout::plain && (is_image(x) || is_features(x))) || one_pixel;
  if (batch && in_order && (dims.size() == 2 || dims.size() == 4)) return to_layer_shape(call, from, dims);
  if (batch && dims.size() == 5 && is_image(x) && !pixels && dims[1] * dims[2] == x.dims[1] && dims[3] == x.dims[2] &&
      dims[4] == x.dims[3])
    return view(call, from, dims, Layout::grouped);
  if (batch && dims.size() == 4 && (x.layout == Layout::grouped || x.layout == Layout::shuffled) &&
      dims == Dims{x.dims[0], x.dims[1] * x.dims[2], x.dims[3], x.dims[4]}) {
    if (x.layout == Layout::grouped) return view(call, from, dims, Layout::plain);
    const std::int64_t groups = x.dims[2];
    return call.layer(dims, Layout::plain, {from},
                      [=](Builder& net, const std::vector<Node>& in) { return net.channel_shuffle(in[0], groups); });
  }
  if (pixels && batch) return call.without_layer(dims, "flattens (N, H, W, C), whose order differs from (N, C, H, W)");
  return call.without_layer(dims, "reshapes " + to_string(x.dims) + " to " + to_string(dims));
}

std::vector<Value> split(const Call& call) {
  const Term& x = call.term(0);
  if (x.dims.empty())
    return std::vector<Value>(static_cast<std::size_t>(call.node.output_size()), call.without_layer({}));
  const auto axis = static_cast<std::size_t>(axis_of(int_of(call.node, "axis", 0), x.dims.size()));
  const std::int64_t size = x.dims[axis], parts = call.node.output_size();
  Dims sizes;
  if (call.has(1)) {
    sizes = call.integers(1);
  } else {
    const std::int64_t each = (size + parts - 1) / std::max<std::int64_t>(parts, 1);
    for (std::int64_t left = size; left > 0; left -= each) sizes.push_back(std::min(each, left));
  }
  const auto outside = [&](std::int64_t part) { return part < 1 || part > size; };
  if (static_cast<std::int64_t>(sizes.size()) != parts || std::ranges::any_of(sizes, outside) ||
      std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) != size)
    refuse("has parts that are not " + std::to_string(size) + " in all");
  std::vector<Value> values;
  std::int64_t first = 0;
  for (const std::int64_t count : sizes) {
    values.push_back(cut(call, call.inputs[0].term, axis, {first, count}));
    first += count;
  }
  return values;
}

// One of the tensors that SplitToSequence gives.
Value sequence_at(const Call& call) {
  const Term& sequence = call.term(0);
  const Value& whole = sequence.operands.at(0);
  const Term& x = call.graph.of(whole);
  if (sequence.operands.size() < 2 || !sequence.operands[1].constant || int_of(*sequence.node, "keepdims", 1) == 0)
    refuse("is of a sequence that has no sizes");
  const auto axis = static_cast<std::size_t>(axis_of(int_of(*sequence.node, "axis", 0), x.dims.size()));
  Dims sizes = sequence.operands[1].constant->integers();
  if (sequence.operands[1].constant->dims.empty()) {  // one size for all parts; the last one may be smaller
    if (sizes[0] < 1 || sizes[0] > x.dims[axis]) refuse("is of a sequence of parts of " + std::to_string(sizes[0]));
    const std::int64_t each = sizes[0];
    sizes.clear();
    for (std::int64_t left = x.dims[axis]; left > 0; left -= each) sizes.push_back(std::min(each, left));
  }
  const auto index = static_cast<std::size_t>(axis_of(to_int64(call.number(1)), sizes.size()));
  const auto to = sizes.begin() + static_cast<std::ptrdiff_t>(index);
  for (const std::int64_t size : sizes)
    if (size < 1 || size > x.dims[axis]) refuse("is of a sequence of parts of " + std::to_string(size));
  const std::int64_t first = std::accumulate(sizes.begin(), to, std::int64_t{0});
  if (first > x.dims[axis] - *to) refuse("is behind the end of its tensor");
  return cut(call, whole.term, axis, {first, *to});
}

std::optional<Value> recognise_shape(const Call& call) {
  const std::string& op = call.node.op_type();
  if (!call.has_term(0)) return std::nullopt;
  const Term& x = call.term(0);
  if (op == "Reshape")
    return reshaped(call, reshaped_dims(x.dims, call.integers(1), int_of(call.node, "allowzero", 0) != 0));
  if (op == "Flatten") {
    const auto axis =
        std::clamp<std::int64_t>(int_of(call.node, "axis", 1), 0, static_cast<std::int64_t>(x.dims.size()));
    const Dims before(x.dims.begin(), x.dims.begin() + axis), behind(x.dims.begin() + axis, x.dims.end());
    return reshaped(call, {count_of(before), count_of(behind)});
  }
  if (op == "Squeeze" || op == "Unsqueeze") return squeeze(call);
  if (op == "Transpose") return transpose(call);
  if (op == "Slice") return slice(call);
  if (op == "Concat") return concat(call);
  if (op == "Pad") return pad(call);
  if (op == "Resize") return resize(call);
  if (op == "Gather") return gather(call);
  if (op == "SplitToSequence") return call.without_layer(x.dims);  // part of SequenceAt
  if (op == "SequenceAt" && x.op == "SplitToSequence") return sequence_at(call);
  if (op == "Expand") {
    const auto dims = broadcast(x.dims, call.integers(1));
    return dims == x.dims ? call.same(call.inputs[0].term) : call.without_layer(dims, "repeats values");
  }
  return std::nullopt;
}

const std::string& accepted_operators() {
  static const std::string list =
      "Add, AveragePool, BatchNormalization, Bernoulli, Cast, Clip (0 to 6), Concat, Conv, ConvTranspose, Div, "
      "Dropout, Elu, Erf (in GELU), Flatten, Gelu, Gemm, GlobalAveragePool, GlobalMaxPool, GroupNormalization, "
      "HardSigmoid, HardSwish, Identity, InstanceNormalization, LayerNormalization, LeakyRelu, MatMul, MaxPool, Mul, "
      "PRelu, Pad, RandomUniformLike (in dropout), ReduceMax, ReduceMean, Relu, Reshape, Resize, Sigmoid, Slice, "
      "Softmax, Split, Squeeze, Sub, Tanh, Transpose, Unsqueeze";
  return list;
}

}  // namespace dp::importing
