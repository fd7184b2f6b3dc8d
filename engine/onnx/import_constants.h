// Tensors of a graph that do not depend on the images: weights, and what operators compute from them and from shapes.
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
  std::string name;          // of the initializer; a weight keeps its name when it is reshaped or transposed
  bool stored = false;       // an initializer of the file, perhaps reshaped or transposed; else computed
  std::string_view bytes{};  // the values as the file stores them, or empty:
  std::shared_ptr<const std::vector<double>> numbers{};

  std::int64_t count() const { return count_of(dims); }
  bool whole() const;  // whether the type is one of integers
  double at(std::int64_t i) const;
  std::vector<double> all() const;
  std::vector<std::int64_t> integers() const;   // Error(data) for more than an operator's sizes and indices can be
  Tensor to_float32(const Shape& shape) const;  // `shape` has as many elements
  bool filled_with(double value) const;
};
using ConstantPtr = std::shared_ptr<const Constant>;

// An initializer, or the tensor in an attribute. Values that the file stores as bytes are not copied.
ConstantPtr constant_of(const onnx::TensorProto& tensor, TensorData& data);

// Computes operators whose inputs are all constants (constant folding). The number of elements that it may compute for
// a file is limited.
class Folder {
 public:
  explicit Folder(std::int64_t most_elements) : left_(most_elements) {}

  void spend(std::int64_t elements);  // Error(data) beyond the limit

  // The result of a node. Null if the operator cannot be computed. Inputs that the node leaves out are null.
  // Error(data) if the inputs do not fit.
  ConstantPtr fold(const onnx::NodeProto& node, const std::vector<ConstantPtr>& inputs, TensorData& data);
  ConstantPtr shape(const onnx::NodeProto& node, const Dims& dims);  // Shape, for an input of these dimensions

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

std::int64_t to_int64(double value);  // without its fraction, limited to the range of int64; Error(data) for NaN

// The value of an attribute, or `otherwise` if the node does not have it. Error(data) if it has another type.
const onnx::AttributeProto* attribute(const onnx::NodeProto& node, const char* name, int type);
std::int64_t int_of(const onnx::NodeProto& node, const char* name, std::int64_t otherwise);
float float_of(const onnx::NodeProto& node, const char* name, float otherwise);
std::string text_of(const onnx::NodeProto& node, const char* name, const char* otherwise);
Dims ints_of(const onnx::NodeProto& node, const char* name, const Dims& otherwise);
// The number that was written in Python: the shortest decimal that rounds to this float32. 0.1f gives 0.1.
double shortest(float value);

// The axis as an index: -1 is the last one. Error(data) if there is no such axis.
std::int64_t axis_of(std::int64_t axis, std::size_t rank);
// The dimensions to which an operator such as Add broadcasts both inputs. Nullopt if they do not fit.
std::optional<Dims> broadcast(const Dims& a, const Dims& b);
// The dimensions after Squeeze, or Unsqueeze. Error(data) if an axis that is dropped is not 1.
Dims squeezed_dims(const Dims& from, const Dims& axes, bool unsqueeze);
// The dimensions after a Reshape to `to`, in which 0 keeps a dimension and -1 is the one that follows from the others.
// Error(data) if the number of elements differs.
Dims reshaped_dims(const Dims& from, const std::vector<std::int64_t>& to, bool allow_zero);

}  // namespace dp::importing
