// The graph of an ONNX model as terms: what each of its tensors is, and which layers compute it.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dp/model.h"
#include "engine/onnx/import_constants.h"

namespace dp::importing {

// How a tensor of the file is stored by the layers, whose images are (C,H,W) and whose features are (F).
enum class Layout {
  plain,          // (N,C,H,W) or (N,F)
  channels_last,  // (N,H,W,C)
  grouped,        // (N,g,C/g,H,W), before a channel shuffle
  shuffled,       // (N,C/g,g,H,W)
  other,          // no layer has it
};

// A tensor of the graph: a term, a constant, or an input that is left out.
struct Value {
  int term = -1;
  ConstantPtr constant{};
  bool left_out() const { return term < 0 && !constant; }
};

// Builds the layers. Names of layers and weights are decided when a layer is built, because most terms are not.
class Builder : public ModelBuilder {
 public:
  using ModelBuilder::ModelBuilder;
  using ModelBuilder::shape_of;

  // The name of the layer of `node`: that of its first weight that has PyTorch's form "<layer>.<weight>" and whose
  // layer has no other, or else the module in the node's name.
  struct Named {
    const Constant* weight;  // may be null
    const char* suffix;
  };
  std::string layer_name(const onnx::NodeProto& node, const std::vector<Named>& weights);
  // Whether the constant is a weight of PyTorch, not one that an exporter wrote for a layer without weights.
  static bool is_weight(const Constant& constant, const char* suffix);

  // Features as images of one pixel, for a layer of images, and its results as before.
  Node as_image(Node x) { return shape_of(x, "").rank() == 1 ? reshape(x, {shape_of(x, "")[0], 1, 1}) : x; }
  Node as_before(Node x, bool features) { return features ? flatten(x) : x; }

  // The values of a parameter or a buffer.
  struct Source {
    ConstantPtr values;
    bool transposed = false;  // of (columns, rows)
  };
  std::map<std::string, Source> sources;

 private:
  std::set<std::string> used_;
};
using Node = ModelBuilder::Node;

// Appends the layers of a term; `inputs` are the results of Term::inputs. The result has the layout's shape.
using Build = std::function<Node(Builder& net, const std::vector<Node>& inputs)>;

struct Term {
  const onnx::NodeProto* node = nullptr;  // null: the input of the network
  std::string op;                         // the operator, or the name of what was recognised
  std::vector<Value> operands{};          // of the operator
  Dims dims{};                            // with the batch in front; empty: unknown
  Layout layout = Layout::other;
  std::vector<int> inputs{};         // the terms that `build` reads, or those of the operator
  Build build{};                     // empty: no layer computes it
  std::string problem{};             // why not
  std::vector<std::int64_t> axes{};  // of a reduction
  double eps = 0;                    // of a normalisation without weights, and its groups of channels
  std::int64_t groups = 1;
};

// Everything that the recognisers of operators need.
struct Graph {
  std::int64_t batch;  // with which shapes are computed
  Folder folder;
  TensorData& data;
  std::vector<Term> terms{};
  std::map<std::string, Value, std::less<>> values{};
  std::set<std::string> notices{};
  int renamed_convolutions = 0;  // an exporter has changed their weights

  const Term& of(const Value& value) const { return terms[static_cast<std::size_t>(value.term)]; }
  const Term& of(int term) const { return terms[static_cast<std::size_t>(term)]; }
  Value add(Term term) {
    terms.push_back(std::move(term));
    return {static_cast<int>(terms.size()) - 1};
  }
};

// A node with its inputs.
struct Call {
  Graph& graph;
  const onnx::NodeProto& node;
  std::vector<Value> inputs;

  std::size_t count() const { return inputs.size(); }
  bool has(std::size_t i) const { return i < inputs.size() && !inputs[i].left_out(); }
  bool has_term(std::size_t i) const { return i < inputs.size() && inputs[i].term >= 0; }
  const Term& term(std::size_t i) const;      // Error(data) if it is not one
  ConstantPtr constant(std::size_t i) const;  // Error(data) if it is not one
  ConstantPtr constant_or_null(std::size_t i) const { return i < inputs.size() ? inputs[i].constant : nullptr; }
  double number(std::size_t i) const;  // a constant of one element
  std::vector<std::int64_t> integers(std::size_t i) const { return constant(i)->integers(); }
  // Attribute up to some opset, input i from then on. Nullopt if it is left out.
  std::optional<std::vector<std::int64_t>> axes(const char* name, std::size_t i) const;

  // Terms of this node. The layout is that of the input.
  Value layer(Dims dims, Layout layout, std::vector<int> from, Build build) const;
  Value layer(std::vector<int> from, Build build) const;  // with the dimensions and the layout of from[0]
  Value same(int term) const;                             // the term itself, under the node's name
  // A term without a layer, which may be part of a pattern.
  Value without_layer(std::optional<Dims> dims, std::string problem = {}) const;
};

// The axis of the channels, or the two axes of the rows and columns.
std::size_t channel_axis(const Term& term);
bool over_pixels(const Term& term, std::vector<std::int64_t> axes);
bool is_image(const Term& term);     // a layer has it as (C,H,W)
bool is_features(const Term& term);  // (F)
// The factor, bias or weight has one value for each channel of the term and is broadcast over everything else.
bool per_channel(const Constant& constant, const Term& term);

// Recognisers: the result of a node, or of each of its outputs. Nullopt if the operator is not one of theirs.
std::optional<Value> recognise_layer(const Call& call);        // convolutions, normalisations, pools, matrix products
std::optional<Value> recognise_elementwise(const Call& call);  // activations, sums, products, and patterns of them
std::optional<Value> recognise_shape(const Call& call);        // reshaping, slices, joins, padding, resampling
std::vector<Value> split(const Call& call);
Value reshaped(const Call& call, const Dims& dims);  // of the first input
// The matrix product with this bias; nullopt if it is no linear layer, or if the bias does not fit.
std::optional<Value> with_bias(const Call& call, const Term& product, const ConstantPtr& bias);

// For messages.
const std::string& accepted_operators();

}  // namespace dp::importing
