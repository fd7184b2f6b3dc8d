#include "engine/onnx/import_constants.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

namespace dp::importing {
namespace {

using Proto = onnx::TensorProto;
using Numbers = std::vector<double>;

Dims strides_of(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

constexpr std::size_t kMostDims = 16;

// A tensor of `dims` whose elements come from `x`. `steps`: how far the next index of each dimension is in `x`.
Numbers values_of(const Constant& x, const Dims& dims, const Dims& steps) {
  Numbers values(static_cast<std::size_t>(count_of(dims)));
  Dims at(dims.size(), 0);
  std::int64_t from = 0;
  for (double& value : values) {
    value = x.at(from);
    for (std::size_t axis = dims.size(); axis-- > 0;) {
      from += steps[axis];
      if (++at[axis] < dims[axis]) break;
      from -= steps[axis] * dims[axis];
      at[axis] = 0;
    }
  }
  return values;
}

Numbers broadcast_values(const Constant& x, const Dims& dims) {
  const Dims strides = strides_of(x.dims);
  Dims steps(dims.size(), 0);
  for (std::size_t i = 0; i < x.dims.size(); ++i)
    if (x.dims[i] != 1) steps[dims.size() - x.dims.size() + i] = strides[i];
  return values_of(x, dims, steps);
}

using Unary = double (*)(double);
const std::map<std::string, Unary, std::less<>>& unary_operators() {
  static const std::map<std::string, Unary, std::less<>> operators{
      {"Neg", [](double x) { return -x; }},
      {"Abs", [](double x) { return std::abs(x); }},
      {"Sqrt", [](double x) { return std::sqrt(x); }},
      {"Reciprocal", [](double x) { return 1 / x; }},
      {"Floor", [](double x) { return std::floor(x); }},
      {"Ceil", [](double x) { return std::ceil(x); }},
  };
  return operators;
}

using Binary = double (*)(double, double);
const std::map<std::string, Binary, std::less<>>& binary_operators() {
  static const std::map<std::string, Binary, std::less<>> operators{
      {"Add", [](double a, double b) { return a + b; }},
      {"Sub", [](double a, double b) { return a - b; }},
      {"Mul", [](double a, double b) { return a * b; }},
      {"Div", [](double a, double b) { return a / b; }},
      {"Pow", [](double a, double b) { return std::pow(a, b); }},
      {"Min", [](double a, double b) { return std::min(a, b); }},
      {"Max", [](double a, double b) { return std::max(a, b); }},
  };
  return operators;
}

// The dimensions of the result of an operator that leaves the values as they are. Nullopt for other operators.
std::optional<Dims> relabelled(const onnx::NodeProto& node, const std::vector<ConstantPtr>& inputs) {
  const std::string& op = node.op_type();
  const Dims& dims = inputs[0]->dims;
  if (op == "Identity") return dims;
  if (op == "Reshape") {
    if (inputs.size() < 2 || !inputs[1]) refuse("lacks its shape");
    return reshaped_dims(dims, inputs[1]->integers(), int_of(node, "allowzero", 0) != 0);
  }
  if (op == "Flatten") {
    const auto axis = std::clamp<std::int64_t>(int_of(node, "axis", 1), 0, static_cast<std::int64_t>(dims.size()));
    return Dims{count_of(Dims(dims.begin(), dims.begin() + axis)), count_of(Dims(dims.begin() + axis, dims.end()))};
  }
  if (op != "Squeeze" && op != "Unsqueeze") return std::nullopt;
  const bool has_axes = inputs.size() > 1 && inputs[1];
  if (has_axes) return squeezed_dims(dims, inputs[1]->integers(), op == "Unsqueeze");
  if (op == "Unsqueeze") refuse("lacks its axes");
  Dims out;
  std::ranges::remove_copy(dims, std::back_inserter(out), 1);
  return out;
}

}  // namespace

struct Folder::Call {
  const onnx::NodeProto& node;
  const std::vector<ConstantPtr>& inputs;
  TensorData& data;

  const std::string& op() const { return node.op_type(); }
  std::size_t count() const { return inputs.size(); }
  bool has(std::size_t i) const { return i < inputs.size() && inputs[i]; }
  const Constant& input(std::size_t i) const {
    if (!has(i)) refuse("lacks its input " + std::to_string(i + 1));
    return *inputs[i];
  }
  double number(std::size_t i) const {
    if (input(i).count() != 1) refuse("has an input " + std::to_string(i + 1) + " that is not one number");
    return input(i).at(0);
  }
};

void Folder::spend(std::int64_t elements) {
  left_ -= elements;
  if (left_ < 0) refuse("makes much more tensors than the file has values");
}

std::shared_ptr<Constant> Folder::made(const Dims& dims, int type, Numbers numbers) {
  auto constant = std::make_shared<Constant>();
  constant->dims = dims;
  constant->type = type;
  constant->numbers = std::make_shared<const Numbers>(std::move(numbers));
  return constant;
}

ConstantPtr Folder::shape(const onnx::NodeProto& node, const Dims& dims) {
  const auto rank = static_cast<std::int64_t>(dims.size());
  const auto bounded = [&](std::int64_t i) { return std::clamp<std::int64_t>(i < 0 ? i + rank : i, 0, rank); };
  const std::int64_t first = bounded(int_of(node, "start", 0)), last = bounded(int_of(node, "end", rank));
  Numbers sizes;
  for (std::int64_t i = first; i < last; ++i) sizes.push_back(static_cast<double>(dims[static_cast<std::size_t>(i)]));
  const auto count = static_cast<std::int64_t>(sizes.size());
  return made({count}, Proto::INT64, std::move(sizes));
}

// Gather: the elements of these indices along an axis.
ConstantPtr Folder::gather(const Constant& x, std::int64_t given_axis, const Constant& indices) {
  const auto axis = static_cast<std::size_t>(axis_of(given_axis, x.dims.size()));
  const auto at = static_cast<std::ptrdiff_t>(axis);
  Dims dims(x.dims.begin(), x.dims.begin() + at);
  dims.insert(dims.end(), indices.dims.begin(), indices.dims.end());
  dims.insert(dims.end(), x.dims.begin() + at + 1, x.dims.end());
  spend(dims);
  if (x.count() == 0 || indices.count() == 0) return made(dims, x.type, {});
  const std::int64_t inner = strides_of(x.dims)[axis], size = x.dims[axis];
  Numbers values;
  for (std::int64_t outer = 0; outer < x.count() / (inner * size); ++outer)
    for (std::int64_t i = 0; i < indices.count(); ++i) {
      const std::int64_t index = axis_of(to_int64(indices.at(i)), static_cast<std::size_t>(size));
      for (std::int64_t j = 0; j < inner; ++j) values.push_back(x.at((outer * size + index) * inner + j));
    }
  return made(dims, x.type, std::move(values));
}

ConstantPtr Folder::slice(const Constant& x, std::int64_t axis, std::int64_t first, std::int64_t last,
                          std::int64_t step) {
  const std::int64_t size = x.dims[static_cast<std::size_t>(axis_of(axis, x.dims.size()))];
  if (step != 1 && step != -1) refuse("has a step of " + std::to_string(step));
  const bool forward = step > 0;
  const auto bounded = [&](std::int64_t i, std::int64_t low, std::int64_t high) {
    return std::max(low, std::min(i < -size ? low : i < 0 ? i + size : i, high));
  };
  const std::int64_t begin = bounded(first, 0, forward ? size : size - 1);
  const std::int64_t end = bounded(last, forward ? 0 : -1, size);
  Numbers indices;
  for (std::int64_t i = begin; forward ? i < end : i > end; i += step) indices.push_back(static_cast<double>(i));
  const auto count = static_cast<std::int64_t>(indices.size());
  spend({count});
  return gather(x, axis, *made({count}, Proto::INT64, std::move(indices)));
}

ConstantPtr Folder::constant(const Call& call) {
  const onnx::NodeProto& node = call.node;
  if (const auto* const value = attribute(node, "value", onnx::AttributeProto::TENSOR))
    return constant_of(value->t(), call.data);
  if (const auto* const value = attribute(node, "value_float", onnx::AttributeProto::FLOAT))
    return made({}, Proto::FLOAT, {double{value->f()}});
  if (const auto* const value = attribute(node, "value_int", onnx::AttributeProto::INT))
    return made({}, Proto::INT64, {static_cast<double>(value->i())});
  if (const auto* const value = attribute(node, "value_ints", onnx::AttributeProto::INTS))
    return made({value->ints_size()}, Proto::INT64, Numbers(value->ints().begin(), value->ints().end()));
  if (const auto* const value = attribute(node, "value_floats", onnx::AttributeProto::FLOATS))
    return made({value->floats_size()}, Proto::FLOAT, Numbers(value->floats().begin(), value->floats().end()));
  return nullptr;
}

ConstantPtr Folder::cast(const Call& call) {
  const Constant& x = call.input(0);
  const int to = call.op() == "Cast" ? static_cast<int>(int_of(call.node, "to", x.type)) : call.input(1).type;
  bytes_of_element(to);
  if (to == x.type) return call.inputs[0];
  spend(x.dims);
  Numbers values = x.all();
  const auto result = made(x.dims, to, {});
  if (result->whole() && !x.whole())
    for (double& value : values) value = std::trunc(value);
  if (to == Proto::BOOL)
    for (double& value : values) value = value != 0;
  result->numbers = std::make_shared<const Numbers>(std::move(values));
  result->name = x.name, result->stored = x.stored;
  return result;
}

ConstantPtr Folder::expand(const Call& call) {
  const Constant& x = call.input(0);
  const Dims asked = call.input(1).integers();
  const std::optional<Dims> dims = broadcast(x.dims, asked);
  if (!dims || dims->size() > kMostDims) refuse("expands " + to_string(x.dims) + " to " + to_string(asked));
  spend(*dims);
  return made(*dims, x.type, broadcast_values(x, *dims));
}

ConstantPtr Folder::filled(const Call& call) {  // ConstantOfShape
  const Dims dims = call.input(0).integers();
  const auto* const given = attribute(call.node, "value", onnx::AttributeProto::TENSOR);
  const ConstantPtr value = given != nullptr ? constant_of(given->t(), call.data) : made({}, Proto::FLOAT, {0.0});
  if (value->count() != 1) refuse("has a value that is not one number");
  if (dims.size() > kMostDims) refuse("has too many dimensions");
  spend(dims);
  return made(dims, value->type, Numbers(static_cast<std::size_t>(count_of(dims)), value->at(0)));
}

ConstantPtr Folder::range(const Call& call) {
  const double first = call.number(0), last = call.number(1), step = call.number(2);
  const double count = std::max(0.0, std::ceil((last - first) / step));
  if (!(count < 1e9)) refuse("has more than 10^9 numbers");
  spend(static_cast<std::int64_t>(count));
  Numbers values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<double>(i) * step;
  return made({static_cast<std::int64_t>(count)}, call.input(0).type, std::move(values));
}

ConstantPtr Folder::transpose(const Call& call) {
  const Constant& x = call.input(0);
  Dims perm(x.dims.size());
  std::iota(perm.rbegin(), perm.rend(), 0);
  perm = ints_of(call.node, "perm", perm);
  Dims sorted = perm;
  std::ranges::sort(sorted);
  for (std::size_t i = 0; i < sorted.size(); ++i)
    if (sorted[i] != static_cast<std::int64_t>(i)) refuse("has a perm that is not a permutation");
  if (perm.size() != x.dims.size()) refuse("has a perm of another rank than its input");
  spend(x.dims);
  const Dims strides = strides_of(x.dims);
  Dims dims, steps;
  for (const std::int64_t axis : perm) {
    dims.push_back(x.dims[static_cast<std::size_t>(axis)]);
    steps.push_back(strides[static_cast<std::size_t>(axis)]);
  }
  const auto result = made(dims, x.type, values_of(x, dims, steps));
  result->name = x.name, result->stored = x.stored;
  return result;
}

ConstantPtr Folder::slice(const Call& call) {
  const std::vector<std::int64_t> first = call.input(1).integers(), last = call.input(2).integers();
  Dims axes(first.size()), steps(first.size(), 1);
  std::iota(axes.begin(), axes.end(), 0);
  if (call.has(3)) axes = call.input(3).integers();
  if (call.has(4)) steps = call.input(4).integers();
  if (last.size() != first.size() || axes.size() != first.size() || steps.size() != first.size())
    refuse("has starts, ends, axes and steps of different sizes");
  ConstantPtr part = call.inputs[0];
  for (std::size_t i = 0; i < axes.size(); ++i) part = slice(*part, axes[i], first[i], last[i], steps[i]);
  return part;
}

ConstantPtr Folder::concat(const Call& call) {
  Numbers values;
  for (std::size_t i = 0; i < call.count(); ++i) {
    if (call.input(i).dims.size() != 1) return nullptr;
    spend(call.input(i).dims);
    const Numbers part = call.input(i).all();
    values.insert(values.end(), part.begin(), part.end());
  }
  const auto count = static_cast<std::int64_t>(values.size());
  return made({count}, call.input(0).type, std::move(values));
}

ConstantPtr Folder::unary(const Call& call, double (*function)(double)) {
  const Constant& x = call.input(0);
  spend(x.dims);
  Numbers values = x.all();
  for (double& value : values) value = function(value);
  return made(x.dims, x.type, std::move(values));
}

ConstantPtr Folder::binary(const Call& call, double (*function)(double, double)) {
  const Constant &x = call.input(0), &y = call.input(1);
  const std::optional<Dims> dims = broadcast(x.dims, y.dims);
  if (!dims) refuse("combines " + to_string(x.dims) + " and " + to_string(y.dims));
  spend(*dims);
  Numbers a = broadcast_values(x, *dims);
  const Numbers b = broadcast_values(y, *dims);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = function(a[i], b[i]);
    if (call.op() == "Div" && x.whole()) a[i] = std::trunc(a[i]);
  }
  return made(*dims, x.type, std::move(a));
}

ConstantPtr Folder::fold(const onnx::NodeProto& node, const std::vector<ConstantPtr>& inputs, TensorData& data) {
  using Rule = ConstantPtr (Folder::*)(const Call&);
  static const std::map<std::string, Rule, std::less<>> rules{
      {"Cast", &Folder::cast},     {"CastLike", &Folder::cast},      {"Concat", &Folder::concat},
      {"Expand", &Folder::expand}, {"Range", &Folder::range},        {"ConstantOfShape", &Folder::filled},
      {"Slice", &Folder::slice},   {"Transpose", &Folder::transpose}};
  const Call call{node, inputs, data};
  const std::string& op = node.op_type();
  if (op == "Constant") return constant(call);
  if (inputs.empty() || !inputs[0]) return nullptr;
  const Constant& x = *inputs[0];
  if (const std::optional<Dims> dims = relabelled(node, inputs)) {
    auto same = std::make_shared<Constant>(x);
    same->dims = *dims;
    // TorchScript stores equal weights once, and has an Identity with the name of each other one.
    if (op == "Identity" && x.stored) same->name = node.output(0);
    return same;
  }
  if (op == "Shape") return shape(node, x.dims);
  if (op == "Size") return made({}, Proto::INT64, {static_cast<double>(x.count())});
  if (op == "Gather") return gather(x, int_of(node, "axis", 0), call.input(1));
  if (const auto rule = rules.find(op); rule != rules.end()) return (this->*rule->second)(call);
  if (const auto found = unary_operators().find(op); found != unary_operators().end())
    return unary(call, found->second);
  if (const auto found = binary_operators().find(op); found != binary_operators().end() && inputs.size() == 2)
    return binary(call, found->second);
  return nullptr;
}

}  // namespace dp::importing
