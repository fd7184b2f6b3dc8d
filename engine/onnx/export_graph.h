// The graph of an ONNX model while it is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "dp/onnx.h"

namespace onnx {
class GraphProto;
class TensorProto;
}  // namespace onnx

namespace dp {

using Dims = std::vector<std::int64_t>;
using Names = std::vector<std::string>;
using Values = std::vector<float>;

struct Attribute {
  const char* name;
  std::variant<std::int64_t, float, std::string, Dims> value;
};
using Attributes = std::vector<Attribute>;

Dims dims_of(const Shape& shape);

// Nodes and initializers with unique names.
class GraphWriter {
 public:
  explicit GraphWriter(onnx::GraphProto& graph) : graph_(graph) {}

  // `wanted`, or with underscores behind it if a value has that name.
  std::string unique(std::string wanted);
  // Returns the name of the node's result.
  std::string node(const std::string& name, const char* op, const Names& inputs, const Attributes& attributes);
  // An initializer of this name, which unique() returned.
  void floats(const std::string& name, const Dims& dims, const float* values);
  // Constants without a name of their own are stored once. These return their names.
  std::string number(float value);
  std::string sizes(const Dims& values);

  int nodes() const;
  void name_last_result(const char* name);

 private:
  onnx::TensorProto& initializer(const std::string& name, const Dims& dims);

  onnx::GraphProto& graph_;
  std::set<std::string> names_, node_names_;
  std::map<float, std::string> numbers_;
  std::map<Dims, std::string> sizes_;
};

// Writes the layers of a network in their order: nodes for the layer at hand.
class LayerWriter {
 public:
  // Error(usage) if weights are missing, do not fit the model, or have more than 2 GiB.
  LayerWriter(const TrainedModel& network, bool fold_batch_norm, onnx::GraphProto& graph);

  // Calls write(*this) for each layer. It writes the layer's nodes, the last one last, and returns the result.
  template <typename Write>
  void each_layer(const Write& write) {
    int before = 0;
    for (index_ = 1; index_ < results_.size(); ++index_) {
      before = graph_.nodes();
      results_[index_] = write(*this);
    }
    // A layer without nodes, such as dropout, has the result of another layer.
    if (graph_.nodes() == before) --index_, node("Identity", {results_.back()});
    graph_.name_last_result("output");
  }

  const Layer& layer() const { return layer_at(index_); }
  const std::string& input(std::size_t i = 0) const { return results_[static_cast<std::size_t>(layer().inputs.at(i))]; }
  const Shape& input_shape() const { return layer_at(static_cast<std::size_t>(layer().inputs.at(0))).output; }
  Dims sizes_of_output() const { return dims_of(layer().output.prepended(0)); }  // 0: the batch, as it is

  // The node with the name of the layer, and one beside it.
  std::string node(const char* op, const Names& inputs, const Attributes& attributes = {});
  std::string part(const char* op, const Names& inputs, const Attributes& attributes = {});

  // Of the layer: weight, bias.
  const std::vector<const ParameterSpec*>& parameters() const { return parameters_[index_]; }
  // The initializer of a weight, with its own dimensions or others.
  std::string weight(const std::string& name, const std::optional<Dims>& dims = {});
  const float* values_of(const std::string& name) const { return tensors_.at(name).data<float>(); }
  // An initializer beside the weights, "<layer>/<what>".
  std::string constant(const char* what, const Dims& dims, const Values& values);
  std::string number(float value) { return graph_.number(value); }
  std::string sizes(const Dims& values) { return graph_.sizes(values); }
  // A weight or bias that has other values than the network's, or that the network lacks.
  std::string changed(const std::string& name, const Dims& dims, const float* values);

  // The batch normalisation that is folded into this layer, or null; whether this layer is one.
  const Layer* folded_norm() const;
  bool is_folded() const { return folded_.contains(static_cast<std::size_t>(layer().inputs.at(0))); }

 private:
  const Layer& layer_at(std::size_t index) const { return model_.layers()[index]; }
  void take_weights(const NamedTensors& given);
  void find_folded();

  const Model& model_;
  std::map<std::string, Tensor> tensors_;     // weights and buffers as float32
  std::map<std::string, std::string> names_;  // of their initializers
  GraphWriter graph_;
  Names results_;  // of each layer
  std::vector<std::vector<const ParameterSpec*>> parameters_;
  std::map<std::size_t, std::size_t> folded_;  // batch normalisations, by the convolution before them
  std::size_t index_ = 0;                      // of the layer at hand
};

// Error(usage): the file would exceed protobuf's limit.
void require_size(std::int64_t bytes);

}  // namespace dp
