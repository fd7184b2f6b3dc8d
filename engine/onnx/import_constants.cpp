#include "engine/onnx/import_constants.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace dp::importing {
namespace {

using Proto = onnx::TensorProto;
using Numbers = std::vector<double>;

template <typename T>
double read_as(std::string_view bytes, std::int64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
  return static_cast<double>(value);
}
double widened(std::string_view bytes, std::int64_t i, DType type) {
  Tensor one(Shape{1}, type);
  std::memcpy(one.raw(), bytes.data() + i * 2, 2);
  return static_cast<double>(*one.to(DType::f32).data<float>());
}

}  // namespace

std::int64_t to_int64(double value) {
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (std::isnan(value)) refuse("an index or a size is not a number");
  if (value >= kLimit) return std::numeric_limits<std::int64_t>::max();
  if (value < -kLimit) return std::numeric_limits<std::int64_t>::min();
  return static_cast<std::int64_t>(value);
}

// --- constants -------------------------------------------------------------------------------------------------------

bool Constant::whole() const {
  return type != Proto::FLOAT && type != Proto::DOUBLE && type != Proto::FLOAT16 && type != Proto::BFLOAT16;
}

double Constant::at(std::int64_t i) const {
  if (numbers) return (*numbers)[static_cast<std::size_t>(i)];
  switch (type) {
    case Proto::FLOAT: return read_as<float>(bytes, i);
    case Proto::DOUBLE: return read_as<double>(bytes, i);
    case Proto::INT64: return read_as<std::int64_t>(bytes, i);
    case Proto::INT32: return read_as<std::int32_t>(bytes, i);
    case Proto::INT8: return read_as<std::int8_t>(bytes, i);
    case Proto::FLOAT16: return widened(bytes, i, DType::f16);
    case Proto::BFLOAT16: return widened(bytes, i, DType::bf16);
    default: return read_as<std::uint8_t>(bytes, i);
  }
}

Numbers Constant::all() const {
  if (numbers) return *numbers;
  Numbers values(static_cast<std::size_t>(count()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = at(static_cast<std::int64_t>(i));
  return values;
}

std::vector<std::int64_t> Constant::integers() const {
  constexpr std::int64_t kMost = 1 << 16;  // of sizes, axes or indices of one operator
  if (count() > kMost) refuse("has more than " + std::to_string(kMost) + " sizes or indices");
  std::vector<std::int64_t> values;
  for (const double value : all()) values.push_back(to_int64(value));
  return values;
}

Tensor Constant::to_float32(const Shape& shape) const {
  const auto copied = [&](DType of_file) {
    Tensor tensor(shape, of_file);
    if (!bytes.empty()) std::memcpy(tensor.raw(), bytes.data(), bytes.size());
    return tensor.to(DType::f32);
  };
  if (!numbers && type == Proto::FLOAT) return copied(DType::f32);
  if (!numbers && type == Proto::DOUBLE) return copied(DType::f64);
  if (!numbers && type == Proto::FLOAT16) return copied(DType::f16);
  if (!numbers && type == Proto::BFLOAT16) return copied(DType::bf16);
  Tensor tensor(shape);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) tensor.data<float>()[i] = static_cast<float>(at(i));
  return tensor;
}

bool Constant::filled_with(double value) const {
  for (std::int64_t i = 0; i < count(); ++i)
    if (!(at(i) == value)) return false;
  return true;
}

ConstantPtr constant_of(const onnx::TensorProto& tensor, TensorData& data) {
  auto constant = std::make_shared<Constant>();
  constant->dims.assign(tensor.dims().begin(), tensor.dims().end());
  constant->type = tensor.data_type();
  constant->name = tensor.name();
  constant->bytes = data.bytes_of(tensor);
  const std::int64_t count = constant->count();
  if (!constant->bytes.empty() || count == 0) {
    constant->numbers = count == 0 ? std::make_shared<const Numbers>() : nullptr;
    return constant;
  }
  Numbers numbers;
  const auto take = [&](const auto& field) { numbers.assign(field.begin(), field.end()); };
  switch (tensor.data_type()) {
    case Proto::FLOAT: take(tensor.float_data()); break;
    case Proto::DOUBLE: take(tensor.double_data()); break;
    case Proto::INT64: take(tensor.int64_data()); break;
    case Proto::FLOAT16:
    case Proto::BFLOAT16: refuse("tensor " + in_quotes(tensor.name()) + " stores 16-bit floats as integers");
    default: take(tensor.int32_data());
  }
  if (numbers.size() != static_cast<std::size_t>(count))
    refuse("tensor " + in_quotes(tensor.name()) + " of " + to_string(constant->dims) + " has " +
           std::to_string(numbers.size()) + " values");
  constant->numbers = std::make_shared<const Numbers>(std::move(numbers));
  return constant;
}

// --- attributes and dimensions ---------------------------------------------------------------------------------------

const onnx::AttributeProto* attribute(const onnx::NodeProto& node, const char* name, int type) {
  for (const auto& attribute : node.attribute()) {
    if (attribute.name() != name) continue;
    if (attribute.type() != type) refuse("its attribute " + in_quotes(name) + " has another type than the operator's");
    return &attribute;
  }
  return nullptr;
}
std::int64_t int_of(const onnx::NodeProto& node, const char* name, std::int64_t otherwise) {
  const auto* const found = attribute(node, name, onnx::AttributeProto::INT);
  return found == nullptr ? otherwise : found->i();
}
float float_of(const onnx::NodeProto& node, const char* name, float otherwise) {
  const auto* const found = attribute(node, name, onnx::AttributeProto::FLOAT);
  return found == nullptr ? otherwise : found->f();
}
std::string text_of(const onnx::NodeProto& node, const char* name, const char* otherwise) {
  const auto* const found = attribute(node, name, onnx::AttributeProto::STRING);
  return found == nullptr ? otherwise : found->s();
}
Dims ints_of(const onnx::NodeProto& node, const char* name, const Dims& otherwise) {
  const auto* const found = attribute(node, name, onnx::AttributeProto::INTS);
  return found == nullptr ? otherwise : Dims(found->ints().begin(), found->ints().end());
}

double shortest(float value) {
  char text[64];
  double number = value;
  const auto written = std::to_chars(text, text + sizeof text, value);
  std::from_chars(text, written.ptr, number);
  return number;
}

std::int64_t axis_of(std::int64_t axis, std::size_t rank) {
  const auto size = static_cast<std::int64_t>(rank);
  if (axis < -size || axis >= size)
    refuse("a tensor of " + std::to_string(rank) + " dimensions has no axis " + std::to_string(axis));
  return axis < 0 ? axis + size : axis;
}

std::optional<Dims> broadcast(const Dims& a, const Dims& b) {
  Dims to(std::max(a.size(), b.size()), 1);
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::int64_t of_a = i < a.size() ? a[a.size() - 1 - i] : 1, of_b = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (of_a != of_b && of_a != 1 && of_b != 1) return std::nullopt;
    to[to.size() - 1 - i] = of_a == 1 ? of_b : of_a;
  }
  return to;
}

Dims squeezed_dims(const Dims& from, const Dims& axes, bool unsqueeze) {
  const std::size_t rank = from.size() + (unsqueeze ? axes.size() : 0);
  if (rank > 16) refuse("has more than 16 dimensions");
  std::vector<bool> marked(rank);
  for (const std::int64_t axis : axes) marked[static_cast<std::size_t>(axis_of(axis, rank))] = true;
  Dims dims;
  std::size_t next = 0;  // in `from`
  for (std::size_t i = 0; i < rank; ++i) {
    if (unsqueeze && !marked[i] && next == from.size()) refuse("names an axis twice");
    if (!unsqueeze && marked[i] && from[i] != 1) refuse("drops an axis of " + std::to_string(from[i]));
    if (unsqueeze) dims.push_back(marked[i] ? 1 : from[next++]);
    if (!unsqueeze && !marked[i]) dims.push_back(from[i]);
  }
  return dims;
}

Dims reshaped_dims(const Dims& from, const std::vector<std::int64_t>& to, bool allow_zero) {
  Dims dims = to;
  auto open = dims.end();
  for (auto dim = dims.begin(); dim != dims.end(); ++dim) {
    if (*dim == 0 && !allow_zero) {
      const auto i = static_cast<std::size_t>(dim - dims.begin());
      if (i >= from.size()) refuse("keeps a dimension that its input does not have");
      *dim = from[i];
    } else if (*dim == -1 && open == dims.end()) {
      open = dim;
      *dim = 1;
    }
  }
  const std::int64_t all = count_of(from), given = count_of(dims);
  if (open != dims.end() && given > 0) *open = all / given;
  if (count_of(dims) != all) refuse("reshapes " + to_string(from) + " to " + to_string(to));
  return dims;
}

}  // namespace dp::importing
