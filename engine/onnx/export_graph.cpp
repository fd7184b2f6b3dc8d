#include "engine/onnx/export_graph.h"

#include <onnx/onnx_pb.h>

#include <limits>
#include <string_view>

#include "dp/error.h"

namespace dp {
namespace {

void add(onnx::NodeProto& node, const Attribute& given) {
  onnx::AttributeProto& attribute = *node.add_attribute();
  attribute.set_name(given.name);
  if (const auto* const number = std::get_if<std::int64_t>(&given.value)) {
    attribute.set_type(onnx::AttributeProto::INT);
    attribute.set_i(*number);
  } else if (const auto* const real = std::get_if<float>(&given.value)) {
    attribute.set_type(onnx::AttributeProto::FLOAT);
    attribute.set_f(*real);
  } else if (const auto* const text = std::get_if<std::string>(&given.value)) {
    attribute.set_type(onnx::AttributeProto::STRING);
    attribute.set_s(*text);
  } else {
    attribute.set_type(onnx::AttributeProto::INTS);
    for (const std::int64_t size : std::get<Dims>(given.value)) attribute.add_ints(size);
  }
}

}  // namespace

Dims dims_of(const Shape& shape) { return {shape.dims().begin(), shape.dims().end()}; }

void require_size(std::int64_t bytes) {
  if (bytes > std::numeric_limits<std::int32_t>::max())
    throw Error(ErrorCode::usage, "an ONNX file has at most 2 GiB, and this network takes " + std::to_string(bytes) +
                                      " bytes; save it as safetensors");
}

std::string GraphWriter::unique(std::string wanted) {
  while (!names_.insert(wanted).second) wanted += '_';
  return wanted;
}

std::string GraphWriter::node(const std::string& name, const char* op, const Names& inputs,
                              const Attributes& attributes) {
  onnx::NodeProto& node = *graph_.add_node();
  std::string own = name;
  for (int count = 2; !node_names_.insert(own).second; ++count) own = name + "_" + std::to_string(count);
  node.set_name(own);
  node.set_op_type(op);
  for (const std::string& input : inputs) node.add_input(input);
  for (const Attribute& attribute : attributes) add(node, attribute);
  node.add_output(unique(own + "_output"));
  return node.output(0);
}

onnx::TensorProto& GraphWriter::initializer(const std::string& name, const Dims& dims) {
  onnx::TensorProto& tensor = *graph_.add_initializer();
  tensor.set_name(name);
  for (const std::int64_t dim : dims) tensor.add_dims(dim);
  return tensor;
}

void GraphWriter::floats(const std::string& name, const Dims& dims, const float* values) {
  onnx::TensorProto& tensor = initializer(name, dims);
  tensor.set_data_type(onnx::TensorProto::FLOAT);
  tensor.set_raw_data(values, static_cast<std::size_t>(Shape(dims).numel()) * sizeof(float));
}

std::string GraphWriter::number(float value) {
  std::string& name = numbers_[value];
  if (name.empty()) floats(name = unique("constant" + std::to_string(numbers_.size())), {}, &value);
  return name;
}

std::string GraphWriter::sizes(const Dims& values) {
  std::string& name = sizes_[values];
  if (!name.empty()) return name;
  name = unique("sizes" + std::to_string(sizes_.size()));
  onnx::TensorProto& tensor = initializer(name, {static_cast<std::int64_t>(values.size())});
  tensor.set_data_type(onnx::TensorProto::INT64);
  tensor.set_raw_data(values.data(), values.size() * sizeof(std::int64_t));
  return name;
}

int GraphWriter::nodes() const { return graph_.node_size(); }
void GraphWriter::name_last_result(const char* name) { graph_.mutable_node()->rbegin()->set_output(0, name); }

LayerWriter::LayerWriter(const TrainedModel& network, bool fold_batch_norm, onnx::GraphProto& graph)
    : model_(network.model), graph_(graph), results_(model_.layers().size()), parameters_(results_.size()) {
  results_[0] = graph_.unique("input");
  graph_.unique("output");
  take_weights(network.weights);
  for (const ParameterSpec& parameter : model_.parameters())
    parameters_[static_cast<std::size_t>(parameter.layer)].push_back(&parameter);
  if (fold_batch_norm) find_folded();
}

void LayerWriter::take_weights(const NamedTensors& given) {
  std::map<std::string_view, const Tensor*> by_name;
  for (const auto& [name, tensor] : given) by_name[name] = &tensor;
  std::int64_t bytes = 0;
  const auto take = [&](const std::string& name, const Shape& shape) {
    const auto found = by_name.find(name);
    if (found == by_name.end())
      throw Error(ErrorCode::usage, "the weights lack the tensor '" + name + "' of the model");
    if (found->second->shape() != shape)
      throw Error(ErrorCode::usage, "the tensor '" + name + "' has the shape " + to_string(found->second->shape()) +
                                        ", but the model has " + to_string(shape));
    tensors_[name] = found->second->to(DType::f32);
    names_[name] = graph_.unique(name);
    bytes += shape.numel() * std::int64_t{sizeof(float)};
  };
  for (const ParameterSpec& parameter : model_.parameters()) take(parameter.name, parameter.shape);
  for (const BufferSpec& buffer : model_.buffers())
    if (buffer.kind != BufferKind::num_batches_tracked) take(buffer.name, buffer.shape);
  require_size(bytes);
}

// Batch normalisations of a convolution that nothing else reads.
void LayerWriter::find_folded() {
  std::vector<int> readers(results_.size());
  for (const Layer& reader : model_.layers())
    for (const int read : reader.inputs) ++readers[static_cast<std::size_t>(read)];
  for (std::size_t i = 1; i < results_.size(); ++i) {
    const auto* const norm = std::get_if<BatchNorm2d>(&layer_at(i).kind);
    if (norm == nullptr || !norm->track_running_stats) continue;
    const auto conv = static_cast<std::size_t>(layer_at(i).inputs[0]);
    const LayerKind& kind = layer_at(conv).kind;
    const bool folds = std::holds_alternative<ConvTranspose2d>(kind) ||
                       (std::holds_alternative<Conv2d>(kind) && parameters_[conv][0]->shape.rank() != 3);
    if (folds && readers[conv] == 1) folded_[conv] = i;
  }
}

const Layer* LayerWriter::folded_norm() const {
  const auto found = folded_.find(index_);
  return found == folded_.end() ? nullptr : &layer_at(found->second);
}

std::string LayerWriter::node(const char* op, const Names& inputs, const Attributes& attributes) {
  return graph_.node(layer().name, op, inputs, attributes);
}
std::string LayerWriter::part(const char* op, const Names& inputs, const Attributes& attributes) {
  return graph_.node(layer().name + "/" + op, op, inputs, attributes);
}

std::string LayerWriter::weight(const std::string& name, const std::optional<Dims>& dims) {
  const Tensor& tensor = tensors_.at(name);
  return changed(name, dims ? *dims : dims_of(tensor.shape()), tensor.data<float>());
}
std::string LayerWriter::changed(const std::string& name, const Dims& dims, const float* values) {
  std::string& own = names_[name];
  if (own.empty()) own = graph_.unique(name);
  graph_.floats(own, dims, values);
  return own;
}
std::string LayerWriter::constant(const char* what, const Dims& dims, const Values& values) {
  const std::string name = graph_.unique(layer().name + "/" + what);
  graph_.floats(name, dims, values.data());
  return name;
}

}  // namespace dp
