// The graph of an ONNX model while it is read. Each tensor of the graph is a constant, or a term: a tensor that depends
// on the images.
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

// The order of a tensor's dimensions in the file. The layers of dp have (N,C,H,W) or (N,F) in all cases: a Transpose of
// the file changes the layout of a term, and no layer is built for it.
enum class Layout {
  plain,          // (N,C,H,W) or (N,F)
  channels_last,  // (N,H,W,C)
  grouped,        // (N,g,C/g,H,W): the first step of a channel shuffle over g groups
  shuffled,       // (N,C/g,g,H,W): its second step
  other,          // anything else; such a term has no layer
};

// A tensor of the graph: a term or a constant. Neither: an optional input that a node leaves out.
struct Value {
  int term = -1;  // index into Graph::terms
  ConstantPtr constant{};
  bool left_out() const { return term < 0 && !constant; }
};

// Builds the layers in the second pass, and gives them names: only then is it known which terms become layers.
class Builder : public ModelBuilder {
 public:
  using ModelBuilder::ModelBuilder;
  using ModelBuilder::shape_of;

  // A name for the layer of `node`. "conv1" if one of the weights is "conv1.<suffix>", as PyTorch names them, and no
  // other layer has that name. Else the module in the node's name, with a number if that repeats.
  struct Named {
    const Constant* weight;  // may be null
    const char* suffix;
  };
  std::string layer_name(const onnx::NodeProto& node, const std::vector<Named>& weights);
  // Whether the constant has PyTorch's name of a weight, "<layer>.<suffix>". Others were written by an exporter.
  static bool is_weight(const Constant& constant, const char* suffix);

  // Some layers take images only. Features pass through them as images of one pixel.
  Node as_image(Node x) { return shape_of(x, "").rank() == 1 ? reshape(x, {shape_of(x, "")[0], 1, 1}) : x; }
  Node as_before(Node x, bool features) { return features ? flatten(x) : x; }

  // Where the values of a parameter or a buffer are, by its name.
  struct Source {
    ConstantPtr values;
    bool transposed = false;  // the file has (in, out) for the weight of a linear layer, (out, in)
  };
  std::map<std::string, Source> sources;

 private:
  std::map<std::string, int> used_;  // names, and how many layers asked for each
};
using Node = ModelBuilder::Node;

// Appends the layers of a term to the network and returns the last one. `inputs` are the nodes of Term::inputs.
using Build = std::function<Node(Builder& net, const std::vector<Node>& inputs)>;

// A tensor that depends on the images. A pattern of several operators becomes one layer: the terms of its first
// operators have no layer, and the term of the last one has the layer, with the pattern's input as its input.
struct Term {
  const onnx::NodeProto* node = nullptr;  // null: the input of the network
  std::string op;                         // the operator, or a name for the pattern, such as "Gelu" or "group_norm"
  std::vector<Value> operands{};          // the inputs of the operator
  Dims dims{};                            // in the order of the file, with the batch; empty: unknown
  Layout layout = Layout::other;
  std::vector<int> inputs{};  // the terms that `build` reads; without a layer, those of the operator
  Build build{};              // empty: there is no layer
  std::string problem{};      // why there is none, for the error if the output needs it
  // Options of operators that later ones complete to a pattern:
  std::vector<std::int64_t> axes{};  // of ReduceMean and ReduceMax
  double eps = 0;                    // of a normalisation without weights
  std::int64_t groups = 1;           // of a group normalisation
};

struct Graph {
  std::int64_t batch;  // the first dimension of the input
  Folder folder;
  TensorData& data;
  std::vector<Term> terms{};
  std::map<std::string, Value, std::less<>> values{};
  std::set<std::string> notices{};
  int renamed_convolutions = 0;  // whose weights an exporter changed: it folded batch normalisations into them

  const Term& of(const Value& value) const { return terms[static_cast<std::size_t>(value.term)]; }
  const Term& of(int term) const { return terms[static_cast<std::size_t>(term)]; }
  Value add(Term term) {
    terms.push_back(std::move(term));
    return {static_cast<int>(terms.size()) - 1};
  }
};

// A node that is being read, with its inputs.
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
  // Axes are an attribute in earlier opsets and the input i in later ones. Nullopt if they are left out.
  std::optional<std::vector<std::int64_t>> axes(const char* name, std::size_t i) const;

  // The result of this node is a new term with a layer, which reads the terms `from`.
  Value layer(Dims dims, Layout layout, std::vector<int> from, Build build) const;
  Value layer(std::vector<int> from, Build build) const;  // with the dimensions and the layout of from[0]
  // The result is its input: the operator changes nothing.
  Value same(int term) const;
  // The result is a new term without a layer. It may be part of a pattern; if not, `problem` is the error.
  Value without_layer(std::optional<Dims> dims, std::string problem = {}) const;
};

bool is_image(const Term& term);             // (N,C,H,W) or (N,H,W,C)
bool is_features(const Term& term);          // (N,F)
std::size_t channel_axis(const Term& term);  // of images or features
// Whether the axes are those of the rows and the columns.
bool over_pixels(const Term& term, std::vector<std::int64_t> axes);
// Whether the constant has one value for each channel of the term, with dimensions that broadcast so.
bool per_channel(const Constant& constant, const Term& term);

// The result of a node. Nullopt if the operator is not one of these.
std::optional<Value> recognise_layer(const Call& call);        // convolutions, normalisations, pools, matrix products
std::optional<Value> recognise_elementwise(const Call& call);  // activations, sums, products, and patterns of them
std::optional<Value> recognise_shape(const Call& call);        // reshaping, slices, joins, padding, resampling
std::vector<Value> split(const Call& call);                    // the results of Split
Value reshaped(const Call& call, const Dims& dims);            // the first input with other dimensions
// The linear layer of a MatMul and the Add behind it. Nullopt if `product` is no linear layer, or if the bias does not
// fit.
std::optional<Value> with_bias(const Call& call, const Term& product, const ConstantPtr& bias);

const std::string& accepted_operators();  // for messages

}  // namespace dp::importing
