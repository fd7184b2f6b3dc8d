#include "engine/onnx/export.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <variant>

#include "dp/error.h"
#include "engine/onnx/export_graph.h"
#include "kernels/resample/op.h"

namespace dp {
namespace {

constexpr int kOpset = 17;  // the first with LayerNormalization

Dims pair(const HW& sides) { return {sides.h, sides.w}; }

std::string reshape(LayerWriter& w, const std::string& x, const Dims& sizes) {
  return w.part("Reshape", {x, w.sizes(sizes)});
}
std::string filled(LayerWriter& w, const char* what, std::int64_t count, float value) {
  return w.constant(what, {count}, Values(static_cast<std::size_t>(count), value));
}
// A layer that needs no operator.
template <typename Other>
std::string write(LayerWriter& w, const Other&) {
  throw Error(ErrorCode::usage, "layer '" + w.layer().name + "' cannot be written as ONNX: it has no operators there");
}

// The factor and the new bias of each output channel of a convolution, in which a batch normalisation is folded.
struct FoldedNorm {
  std::vector<double> factors;
  Values biases;
};
FoldedNorm fold(const LayerWriter& w, const Layer& norm, const float* bias) {
  const auto& kind = std::get<BatchNorm2d>(norm.kind);
  const auto values = [&](const char* name) { return w.values_of(norm.name + name); };
  const float* const weights = kind.affine ? values(".weight") : nullptr;
  const float* const shifts = kind.affine ? values(".bias") : nullptr;
  const float *const means = values(".running_mean"), *const variances = values(".running_var");
  FoldedNorm folded;
  for (std::int64_t c = 0; c < norm.output[0]; ++c) {
    const auto at = [&](const float* tensor, double missing) {
      return tensor == nullptr ? missing : static_cast<double>(tensor[c]);
    };
    const double factor = at(weights, 1) / std::sqrt(at(variances, 0) + kind.eps);
    folded.factors.push_back(factor);
    folded.biases.push_back(static_cast<float>(at(shifts, 0) + (at(bias, 0) - at(means, 0)) * factor));
  }
  return folded;
}

// Input, weight and bias of a convolution. `channel_of`: the output channel of an element of the weight.
template <typename ChannelOf>
Names convolution_inputs(LayerWriter& w, const Dims& dims, const ChannelOf& channel_of) {
  const ParameterSpec& weight = *w.parameters()[0];
  const ParameterSpec* const bias = w.parameters().size() > 1 ? w.parameters()[1] : nullptr;
  const Layer* const norm = w.folded_norm();
  if (norm == nullptr) {
    Names inputs{w.input(), w.weight(weight.name, dims)};
    if (bias != nullptr) inputs.push_back(w.weight(bias->name));
    return inputs;
  }
  const FoldedNorm folded = fold(w, *norm, bias != nullptr ? w.values_of(bias->name) : nullptr);
  const float* const values = w.values_of(weight.name);
  Values products(static_cast<std::size_t>(weight.shape.numel()));
  for (std::size_t i = 0; i < products.size(); ++i)
    products[i] =
        static_cast<float>(static_cast<double>(values[i]) *
                           folded.factors[static_cast<std::size_t>(channel_of(static_cast<std::int64_t>(i)))]);
  return {w.input(), w.changed(weight.name, dims, products.data()),
          w.changed(w.layer().name + ".bias", {w.layer().output[0]}, folded.biases.data())};
}

std::string write(LayerWriter& w, const Conv2d& conv) {
  const ParameterSpec& spec = *w.parameters()[0];
  if (spec.shape.rank() == 3) return w.node("Mul", {w.input(), w.weight(spec.name)});  // ModelBuilder::scale()
  const std::int64_t of_each = spec.shape.numel() / conv.out_channels;
  const Padding& p = conv.padding;
  return w.node(
      "Conv",
      convolution_inputs(w, {conv.out_channels, w.input_shape()[0] / conv.groups, conv.kernel.h, conv.kernel.w},
                         [&](std::int64_t i) { return i / of_each; }),
      {{"kernel_shape", pair(conv.kernel)},
       {"strides", pair(conv.stride)},
       {"pads", Dims{p.h, p.w, p.h + p.more_behind.h, p.w + p.more_behind.w}},
       {"dilations", pair(conv.dilation)},
       {"group", conv.groups}});
}
std::string write(LayerWriter& w, const ConvTranspose2d& conv) {
  const Shape& shape = w.parameters()[0]->shape;  // (in, out / groups, kH, kW)
  const std::int64_t window = shape[2] * shape[3], inputs = shape[0] / conv.groups;
  return w.node("ConvTranspose",
                convolution_inputs(w, dims_of(shape),
                                   [&](std::int64_t i) {
                                     const std::int64_t from = i / (window * shape[1]), to = i / window % shape[1];
                                     return from / inputs * shape[1] + to;
                                   }),
                {{"kernel_shape", pair(conv.kernel)},
                 {"strides", pair(conv.stride)},
                 {"pads", Dims{conv.padding.h, conv.padding.w, conv.padding.h, conv.padding.w}},
                 {"output_padding", pair(conv.output_padding)},
                 {"dilations", pair(conv.dilation)},
                 {"group", conv.groups}});
}

std::string with_affine(LayerWriter& w, bool affine, const std::string& x) {
  if (!affine) return x;
  const Dims channels{w.layer().output[0], 1, 1};
  return w.part("Add", {w.part("Mul", {x, w.weight(w.layer().name + ".weight", channels)}),
                        w.weight(w.layer().name + ".bias", channels)});
}
std::string write(LayerWriter& w, const BatchNorm2d& norm) {
  const std::string& name = w.layer().name;
  const std::int64_t channels = w.layer().output[0];
  if (w.is_folded()) return w.input();
  if (norm.track_running_stats)
    return w.node("BatchNormalization",
                  {w.input(), norm.affine ? w.weight(name + ".weight") : filled(w, "ones", channels, 1),
                   norm.affine ? w.weight(name + ".bias") : filled(w, "zeros", channels, 0),
                   w.weight(name + ".running_mean"), w.weight(name + ".running_var")},
                  {{"epsilon", static_cast<float>(norm.eps)}, {"momentum", static_cast<float>(1 - norm.momentum)}});
  // With the statistics of the batch, which runtimes refuse as BatchNormalization's training_mode.
  const Attribute over{"axes", Dims{0, 2, 3}};
  const std::string centred = w.part("Sub", {w.input(), w.part("ReduceMean", {w.input()}, {over})});
  const std::string variance = w.part("ReduceMean", {w.part("Mul", {centred, centred})}, {over});
  const std::string deviation = w.part("Sqrt", {w.part("Add", {variance, w.number(static_cast<float>(norm.eps))})});
  return with_affine(w, norm.affine, w.node("Div", {centred, deviation}));
}
std::string write(LayerWriter& w, const GroupNorm& norm) {
  const std::int64_t channels = w.layer().output[0], groups = norm.groups;
  const Attribute eps{"epsilon", static_cast<float>(norm.eps)};
  if (groups == channels && norm.affine)
    return w.node("InstanceNormalization",
                  {w.input(), w.weight(w.layer().name + ".weight"), w.weight(w.layer().name + ".bias")}, {eps});
  const std::string ones = filled(w, "ones", groups, 1), zeros = filled(w, "zeros", groups, 0);
  if (groups == channels) return w.node("InstanceNormalization", {w.input(), ones, zeros}, {eps});
  const std::string y = w.node("InstanceNormalization", {reshape(w, w.input(), {0, groups, -1}), ones, zeros}, {eps});
  return with_affine(w, norm.affine, reshape(w, y, w.sizes_of_output()));
}
std::string write(LayerWriter& w, const LayerNorm& norm) {
  Names inputs{w.part("Transpose", {w.input()}, {{"perm", Dims{0, 2, 3, 1}}})};
  inputs.push_back(norm.affine ? w.weight(w.layer().name + ".weight") : filled(w, "ones", w.layer().output[0], 1));
  if (norm.affine) inputs.push_back(w.weight(w.layer().name + ".bias"));
  const std::string y =
      w.node("LayerNormalization", inputs, {{"axis", std::int64_t{-1}}, {"epsilon", static_cast<float>(norm.eps)}});
  return w.part("Transpose", {y}, {{"perm", Dims{0, 3, 1, 2}}});
}

std::string write(LayerWriter& w, const Add&) { return w.node("Add", {w.input(0), w.input(1)}); }
std::string write(LayerWriter& w, const Multiply&) { return w.node("Mul", {w.input(0), w.input(1)}); }
std::string write(LayerWriter& w, const Concat&) {
  Names parts;
  for (std::size_t i = 0; i < w.layer().inputs.size(); ++i) parts.push_back(w.input(i));
  return w.node("Concat", parts, {{"axis", std::int64_t{1}}});
}
std::string cut(LayerWriter& w, const std::string& x, const Dims& axes, const Dims& begin, const Dims& end) {
  return w.node("Slice", {x, w.sizes(begin), w.sizes(end), w.sizes(axes)});
}
std::string write(LayerWriter& w, const Slice& slice) {
  return cut(w, w.input(), {1}, {slice.first}, {slice.first + slice.count});
}
std::string write(LayerWriter& w, const ChannelShuffle& shuffle) {
  const Shape& shape = w.layer().output;
  const std::string groups = reshape(w, w.input(), {0, shuffle.groups, shape[0] / shuffle.groups, shape[1], shape[2]});
  return reshape(w, w.node("Transpose", {groups}, {{"perm", Dims{0, 2, 1, 3, 4}}}), w.sizes_of_output());
}

std::string write(LayerWriter& w, const Linear&) {
  Names inputs{w.input()};
  for (const ParameterSpec* const parameter : w.parameters()) inputs.push_back(w.weight(parameter->name));
  return w.node("Gemm", inputs, {{"transB", std::int64_t{1}}});
}

std::string write(LayerWriter& w, const Relu&) { return w.node("Relu", {w.input()}); }
std::string write(LayerWriter& w, const Relu6&) { return w.node("Clip", {w.input(), w.number(0), w.number(6)}); }
std::string write(LayerWriter& w, const LeakyRelu& function) {
  return w.node("LeakyRelu", {w.input()}, {{"alpha", function.negative_slope}});
}
std::string write(LayerWriter& w, const Elu& function) {
  return w.node("Elu", {w.input()}, {{"alpha", function.alpha}});
}
std::string write(LayerWriter& w, const Sigmoid&) { return w.node("Sigmoid", {w.input()}); }
std::string write(LayerWriter& w, const HardSigmoid&) {
  return w.node("HardSigmoid", {w.input()}, {{"alpha", 1.0f / 6}, {"beta", 0.5f}});
}
std::string write(LayerWriter& w, const Tanh&) { return w.node("Tanh", {w.input()}); }
std::string write(LayerWriter& w, const Silu&) { return w.node("Mul", {w.input(), w.part("Sigmoid", {w.input()})}); }
std::string write(LayerWriter& w, const HardSwish&) { return w.node("HardSwish", {w.input()}); }
// Gelu is an operator of opset 20 only. Runtimes recognise the nodes that PyTorch writes.
std::string write(LayerWriter& w, const Gelu&) {
  const std::string erf = w.part("Erf", {w.part("Div", {w.input(), w.number(std::sqrt(2.0f))})});
  return w.node("Mul", {w.part("Mul", {w.input(), w.part("Add", {erf, w.number(1)})}), w.number(0.5f)});
}
std::string write(LayerWriter& w, const GeluTanh&) {
  const std::string cube = w.part("Mul", {w.input(), w.part("Mul", {w.input(), w.input()})});
  const std::string sum = w.part("Add", {w.input(), w.part("Mul", {w.number(0.044715f), cube})});
  const std::string tanh = w.part("Tanh", {w.part("Mul", {w.number(0.7978845608f), sum})});  // sqrt(2 / pi)
  return w.node("Mul", {w.part("Mul", {w.number(0.5f), w.input()}), w.part("Add", {tanh, w.number(1)})});
}
std::string write(LayerWriter& w, const Times& function) {
  return w.node("Mul", {w.input(), w.number(function.factor)});
}
std::string write(LayerWriter& w, const Activation& activation) {
  return std::visit([&](const auto& function) { return write(w, function); }, activation.function);
}
std::string write(LayerWriter& w, const PRelu& prelu) {
  const bool each = prelu.num_parameters > 1 && w.layer().output.rank() == 3;
  const ParameterSpec& spec = *w.parameters()[0];
  return w.node("PRelu",
                {w.input(), w.weight(spec.name, each ? Dims{prelu.num_parameters, 1, 1} : dims_of(spec.shape))});
}
std::string write(LayerWriter& w, const Softmax&) {
  return w.node("Softmax", {w.input()}, {{"axis", std::int64_t{1}}});
}

// ceil_mode is written as padding: runtimes differ in whether a window may begin behind the image.
std::string write(LayerWriter& w, const MaxPool2d& pool) {
  const auto behind = [&](int axis, int HW::*side) {
    const std::int64_t span = std::int64_t{pool.dilation.*side} * (pool.kernel.*side - 1) + 1;
    const std::int64_t end = (w.layer().output[axis] - 1) * std::int64_t{(*pool.stride).*side} + span;
    return std::max<std::int64_t>(end - w.input_shape()[axis] - pool.padding.*side, pool.padding.*side);
  };
  Dims pads{pool.padding.h, pool.padding.w, behind(1, &HW::h), behind(2, &HW::w)};
  std::string x = w.input();
  // A window of distant cells may need more padding than MaxPool accepts.
  if (pads[2] >= pool.kernel.h || pads[3] >= pool.kernel.w) {
    x = w.part("Pad", {x, w.sizes({0, 0, pads[0], pads[1], 0, 0, pads[2], pads[3]}),
                       w.number(-std::numeric_limits<float>::infinity())});
    pads = {0, 0, 0, 0};
  }
  return w.node("MaxPool", {x},
                {{"kernel_shape", pair(pool.kernel)},
                 {"strides", pair(*pool.stride)},
                 {"pads", pads},
                 {"dilations", pair(pool.dilation)}});
}
std::string average(LayerWriter& w, const HW& kernel, const HW& stride, const Dims& pads) {
  return w.node("AveragePool", {w.input()},
                {{"kernel_shape", pair(kernel)},
                 {"strides", pair(stride)},
                 {"pads", pads},
                 {"count_include_pad", std::int64_t{1}}});
}
std::string write(LayerWriter& w, const AvgPool2d& pool) {
  return average(w, pool.kernel, *pool.stride, {pool.padding.h, pool.padding.w, pool.padding.h, pool.padding.w});
}
std::string write(LayerWriter& w, const AdaptiveAvgPool2d& pool) {
  const std::int64_t rows = w.input_shape()[1], cols = w.input_shape()[2];
  if (pool.output == 1) return w.node("GlobalAveragePool", {w.input()});
  if (rows % pool.output.h == 0 && cols % pool.output.w == 0) {
    const HW cell(static_cast<int>(rows / pool.output.h), static_cast<int>(cols / pool.output.w));
    return average(w, cell, cell, {0, 0, 0, 0});
  }
  // Cells of different sizes: products with the shares of each row and column.
  const auto shares = [](std::int64_t size, std::int64_t cells, std::int64_t cell_step, std::int64_t step) {
    Values values(static_cast<std::size_t>(size * cells));
    for (std::int64_t cell = 0; cell < cells; ++cell) {
      const std::int64_t begin = cell * size / cells, end = ((cell + 1) * size + cells - 1) / cells;
      for (std::int64_t i = begin; i < end; ++i)
        values[static_cast<std::size_t>(cell * cell_step + i * step)] = 1.0f / static_cast<float>(end - begin);
    }
    return values;
  };
  const std::int64_t h = pool.output.h, v = pool.output.w;
  const std::string of_rows = w.constant("rows", {h, rows}, shares(rows, h, rows, 1));
  const std::string of_cols = w.constant("columns", {cols, v}, shares(cols, v, 1, v));
  return w.node("MatMul", {w.part("MatMul", {of_rows, w.input()}), of_cols});
}

// A float32 number with which Resize gives the size of the output, in float32 and float64.
float resize_scale(const kernels::ResampleSide& side) {
  const double in = side.input, out = side.output;
  auto scale = static_cast<float>(side.aligned == 0 ? 1 / side.step : out / in);
  while (static_cast<double>(scale) * in < out) scale = std::nextafter(scale, INFINITY);
  return scale;
}
bool resizes(const kernels::ResampleSide& side, float scale) {
  for (std::int32_t i = 0; i < side.output; ++i)
    if (side.reads(i).first != std::min(static_cast<std::int32_t>(static_cast<float>(i) / scale), side.input - 1))
      return false;
  return true;
}
std::string cells(LayerWriter& w, const kernels::ResampleSide& side) {
  Dims read;
  for (std::int32_t i = 0; i < side.output; ++i) read.push_back(side.reads(i).first);
  return w.sizes(read);
}

std::string write(LayerWriter& w, const Upsample& upsample) {
  const Shape &in = w.input_shape(), &out = w.layer().output;
  const bool nearest = upsample.mode == Upsample::Mode::nearest;
  const kernels::Resampling how{nearest ? kernels::Resampling::Mode::nearest : kernels::Resampling::Mode::bilinear,
                                upsample.align_corners, upsample.scale_factor.value_or(0), 0};
  const Shape x = in.prepended(1), y = out.prepended(1);
  const auto rows = kernels::resample_side(how, x, y, 2, &HW::h), cols = kernels::resample_side(how, x, y, 3, &HW::w);
  const Values scales{1, 1, resize_scale(rows), resize_scale(cols)};
  // Cells whose places round to another one in float32 are listed.
  if (nearest && !(resizes(rows, scales[2]) && resizes(cols, scales[3]))) {
    const std::string picked = w.part("Gather", {w.input(), cells(w, rows)}, {{"axis", std::int64_t{2}}});
    return w.node("Gather", {picked, cells(w, cols)}, {{"axis", std::int64_t{3}}});
  }
  const Names inputs{w.input(), "", w.constant("scales", {4}, scales)};
  const char* const transformation = "coordinate_transformation_mode";
  if (nearest)
    return w.node("Resize", inputs,
                  {{"mode", std::string("nearest")},
                   {transformation, std::string("asymmetric")},
                   {"nearest_mode", std::string("floor")}});
  return w.node("Resize", inputs,
                {{"mode", std::string("linear")},
                 {transformation, std::string(upsample.align_corners ? "align_corners" : "half_pixel")}});
}
std::string write(LayerWriter& w, const ZeroPad2d& pad) {
  const auto more = [](int side) { return std::int64_t{std::max(side, 0)}; };
  const auto less = [](int side) { return std::int64_t{std::max(-side, 0)}; };
  const bool cuts = std::min({pad.left, pad.right, pad.top, pad.bottom}) < 0;
  const Names inputs{w.input(),
                     w.sizes({0, 0, more(pad.top), more(pad.left), 0, 0, more(pad.bottom), more(pad.right)})};
  const std::string padded = cuts ? w.part("Pad", inputs) : w.node("Pad", inputs);
  if (!cuts) return padded;
  const Shape& shape = w.layer().output;
  return cut(w, padded, {2, 3}, {less(pad.top), less(pad.left)}, {less(pad.top) + shape[1], less(pad.left) + shape[2]});
}

std::string write(LayerWriter& w, const Dropout&) { return w.input(); }
std::string write(LayerWriter& w, const Flatten&) {
  return w.node("Flatten", {w.input()}, {{"axis", std::int64_t{1}}});
}
std::string write(LayerWriter& w, const Reshape&) {
  return w.node("Reshape", {w.input(), w.sizes(w.sizes_of_output())});
}

void describe(onnx::ValueInfoProto& value, const char* name, const Shape& shape, bool dynamic_batch) {
  value.set_name(name);
  auto& tensor = *value.mutable_type()->mutable_tensor_type();
  tensor.set_elem_type(onnx::TensorProto::FLOAT);
  auto& batch = *tensor.mutable_shape()->add_dim();
  if (dynamic_batch)
    batch.set_dim_param("batch");
  else
    batch.set_dim_value(1);
  for (const std::int64_t size : shape.dims()) tensor.mutable_shape()->add_dim()->set_dim_value(size);
}

}  // namespace

std::string onnx_export(const TrainedModel& network, const OnnxExport& options,
                        const std::map<std::string, std::string>& metadata) {
  onnx::ModelProto model;
  model.set_ir_version(8);  // of the release that brought the opset
  model.set_producer_name("dp");
  model.set_producer_version(DP_VERSION);
  model.add_opset_import()->set_version(kOpset);
  for (const auto& [key, value] : metadata) {
    auto& entry = *model.add_metadata_props();
    entry.set_key(key);
    entry.set_value(value);
  }
  onnx::GraphProto& graph = *model.mutable_graph();
  graph.set_name(network.model.name());
  describe(*graph.add_input(), "input", network.model.input(), options.dynamic_batch);
  describe(*graph.add_output(), "output", network.model.output(), options.dynamic_batch);
  LayerWriter writer(network, options.fold_batch_norm, graph);
  writer.each_layer(
      [](LayerWriter& w) { return std::visit([&](const auto& kind) { return write(w, kind); }, w.layer().kind); });
  require_size(static_cast<std::int64_t>(model.ByteSizeLong()));
  return model.SerializeAsString();
}

}  // namespace dp
