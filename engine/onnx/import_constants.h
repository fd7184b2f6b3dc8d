// Tensors of a graph whose values are known before it runs: initializers, and what operators compute from them and from
// the shapes of other tensors.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dp/tensor.h"
#include "engine/onnx/import_file.h"

namespace dp::importing {

struct Constant {
  Dims dims;
  int type = 0;              // onnx::TensorProto::DataType
  std::string name;          // in the file; of a weight that was reshaped or transposed: its own
  bool stored = false;       // an initializer, or one that was reshaped or transposed
  std::string_view bytes{};  // of the values; or else
  std::shared_ptr<const std::vector<double>> numbers{};

  std::int64_t count() const { return count_of(dims); }
  bool whole() const;  // the type has no fractions
  double at(std::int64_t i) const;
  std::vector<double> all() const;
  std::vector<std::int64_t> integers() const;   // Error(data) beyond int64
  Tensor to_float32(const Shape& shape) const;  // of as many elements
  bool filled_with(double value) const;
};
using ConstantPtr = std::shared_ptr<const Constant>;

// The initializer or attribute; its values are not copied if they are stored as bytes.
ConstantPtr constant_of(const onnx::TensorProto& tensor, TensorData& data);

// Computes constants. The number of elements that are made of a file is limited.
class Folder {
 public:
  explicit Folder(std::int64_t most_elements) : left_(most_elements) {}

  void spend(std::int64_t elements);  // Error(data) beyond the limit

  // The result of a node whose inputs are known; null if the operator is not one of these. An input that is left out is
  // null. Error(data) if the inputs do not fit.
  ConstantPtr fold(const onnx::NodeProto& node, const std::vector<ConstantPtr>& inputs, TensorData& data);
  ConstantPtr shape(const onnx::NodeProto& node, const Dims& dims);  // Shape

 private:
  struct Call;
  ConstantPtr constant(const Call& call);
  ConstantPtr cast(const Call& call);
  ConstantPtr expand(const Call& call);
  ConstantPtr filled(const Call& call);
  ConstantPtr range(const Call& call);
  ConstantPtr transpose(const Call& call);
  ConstantPtr slice(const Call& call);
  ConstantPtr concat(const Call& call);
  ConstantPtr unary(const Call& call, double (*function)(double));
  ConstantPtr binary(const Call& call, double (*function)(double, double));
  ConstantPtr gather(const Constant& x, std::int64_t axis, const Constant& indices);
  ConstantPtr slice(const Constant& x, std::int64_t axis, std::int64_t first, std::int64_t last, std::int64_t step);
  std::shared_ptr<Constant> made(const Dims& dims, int type, std::vector<double> numbers);
  void spend(const Dims& dims) { spend(count_of(dims)); }

  std::int64_t left_;
};

std::int64_t to_int64(double value);  // the nearest int64; Error(data) for NaN

// Attributes. Error(data) if an attribute has another type.
const onnx::AttributeProto* attribute(const onnx::NodeProto& node, const char* name, int type);
std::int64_t int_of(const onnx::NodeProto& node, const char* name, std::int64_t otherwise);
float float_of(const onnx::NodeProto& node, const char* name, float otherwise);
std::string text_of(const onnx::NodeProto& node, const char* name, const char* otherwise);
Dims ints_of(const onnx::NodeProto& node, const char* name, const Dims& otherwise);
// The number that a file stores as a float32: the shortest decimal that rounds to it. 0.1f is 0.1.
double shortest(float value);

// Counts from the end if negative. Error(data) if there is no such axis.
std::int64_t axis_of(std::int64_t axis, std::size_t rank);
// Dimensions of the result of an operator for each element; nullopt if these do not fit.
std::optional<Dims> broadcast(const Dims& a, const Dims& b);
// The dimensions that Reshape gives: 0 keeps one, -1 follows from the others. Error(data) if they do not fit.
Dims reshaped_dims(const Dims& from, const std::vector<std::int64_t>& to, bool allow_zero);

}  // namespace dp::importing
