// An ONNX file as a network, in two passes. The first makes a term of each node of the graph: the shape of the tensor
// that the node computes, and which layer computes it (import_graph.h). The second builds the layers that the output
// needs.
#include "engine/onnx/import.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "dp/error.h"
#include "engine/onnx/import_graph.h"

namespace dp {
namespace {

using namespace importing;

// Shapes are computed with this batch size if the file leaves it open. A first dimension of this size is taken for the
// batch, so it is a number that other dimensions rarely have.
constexpr std::int64_t kSomeBatch = 13;

std::string label_of(const onnx::NodeProto& node) {
  const std::string& name = !node.name().empty() || node.output_size() == 0 ? node.name() : node.output(0);
  return "node " + in_quotes(name) + " (" +
         in_quotes(node.domain().empty() ? node.op_type() : node.domain() + "::" + node.op_type()) + ")";
}

// Returns work(). An error begins with the name of the node; null: without a name.
template <typename Work>
auto at_node(const onnx::NodeProto* node, const Work& work) {
  try {
    return work();
  } catch (const std::out_of_range&) {  // from at() on the inputs of the node
    throw Error(ErrorCode::data, (node == nullptr ? "" : label_of(*node) + ": ") + "lacks an input");
  } catch (const Error& error) {
    if (node == nullptr) throw Error(ErrorCode::data, error.what());
    throw Error(ErrorCode::data, label_of(*node) + ": " + error.what());
  }
}

class Importer {
 public:
  Importer(const onnx::ModelProto& model, const std::string& name, TensorData& data)
      : file_(model.graph()), name_(name), graph_{batch_of(model.graph()), Folder(most_constants(model)), data} {}

  OnnxImport read() {
    read_initializers();
    read_input();
    for (const onnx::NodeProto* const node : needed_nodes()) at_node(node, [&] { read_node(*node); });
    return build(output_term());
  }

 private:
  // How many numbers may be computed from the file: four times those of its weights, which are copied, transposed and
  // converted, and 2^22 more.
  static std::int64_t most_constants(const onnx::ModelProto& model) {
    std::int64_t count = 1 << 22;
    for (const auto& tensor : model.graph().initializer()) {
      count += 4 * count_of(Dims(tensor.dims().begin(), tensor.dims().end()));
      if (count > kMostElements) refuse("has more weights than " + std::to_string(kMostElements / 4));
    }
    return count;
  }

  static const onnx::ValueInfoProto& input_of(const onnx::GraphProto& graph) {
    std::set<std::string_view> initializers;
    for (const auto& tensor : graph.initializer()) initializers.insert(tensor.name());
    const onnx::ValueInfoProto* found = nullptr;
    for (const auto& input : graph.input()) {
      if (initializers.contains(input.name())) continue;
      if (found != nullptr)
        refuse("has the inputs " + in_quotes(found->name()) + " and " + in_quotes(input.name()) +
               "; only one is accepted");
      found = &input;
    }
    if (found == nullptr) refuse("has no input");
    return *found;
  }
  static std::int64_t batch_of(const onnx::GraphProto& graph) {
    const auto& shape = input_of(graph).type().tensor_type().shape();
    const std::int64_t given = shape.dim_size() > 0 ? shape.dim(0).dim_value() : 0;
    if (given > 1 << 20) refuse("has a batch of " + std::to_string(given));
    return given > 0 ? given : kSomeBatch;
  }

  void define(const std::string& name, Value value) {
    if (!graph_.values.emplace(name, std::move(value)).second) refuse("gives the tensor " + in_quotes(name) + " twice");
  }

  void read_initializers() {
    if (file_.sparse_initializer_size() > 0) refuse("has sparse weights");
    for (const auto& tensor : file_.initializer()) {
      auto constant = std::make_shared<Constant>(*constant_of(tensor, graph_.data));
      constant->stored = true;
      define(tensor.name(), {-1, std::move(constant)});
    }
  }

  void read_input() {
    const onnx::ValueInfoProto& input = input_of(file_);
    const auto& type = input.type().tensor_type();
    if (type.elem_type() != onnx::TensorProto::FLOAT && type.elem_type() != onnx::TensorProto::FLOAT16 &&
        type.elem_type() != onnx::TensorProto::BFLOAT16 && type.elem_type() != onnx::TensorProto::DOUBLE)
      refuse("input " + in_quotes(input.name()) + " has no floats");
    Dims dims{graph_.batch};
    for (int i = 1; i < type.shape().dim_size(); ++i) {
      const std::int64_t size = type.shape().dim(i).dim_value();
      if (size < 1 || size > 1 << 24)
        refuse("input " + in_quotes(input.name()) + " has no fixed size of its dimension " + std::to_string(i) +
               "; only the batch may be dynamic: export it with the size of the images");
      dims.push_back(size);
    }
    if (dims.size() != 2 && dims.size() != 4)
      refuse("input " + in_quotes(input.name()) + " has " + std::to_string(type.shape().dim_size()) +
             " dimensions; accepted are (N, C, H, W) and (N, features)");
    count_of(dims);
    Term term{.op = "input", .dims = dims, .layout = Layout::plain};
    term.build = [](Builder& net, const std::vector<Node>&) { return net.input(); };
    define(input.name(), graph_.add(std::move(term)));
  }

  // The nodes that the output depends on, in the order of the file.
  std::vector<const onnx::NodeProto*> needed_nodes() {
    if (file_.output_size() != 1)
      refuse("has " + std::to_string(file_.output_size()) + " outputs; only one is accepted");
    std::set<std::string_view> wanted{file_.output(0).name()};
    std::vector<const onnx::NodeProto*> needed;
    for (int i = file_.node_size(); i-- > 0;) {
      const onnx::NodeProto& node = file_.node(i);
      if (std::ranges::none_of(node.output(), [&](const std::string& name) { return wanted.contains(name); })) continue;
      needed.push_back(&node);
      for (const std::string& name : node.input())
        if (!name.empty()) wanted.insert(name);
    }
    std::ranges::reverse(needed);
    return needed;
  }

  void read_node(const onnx::NodeProto& node) {
    Call call{graph_, node, {}};
    bool known = true, whole = true;
    std::vector<ConstantPtr> constants;
    for (const std::string& name : node.input()) {
      const auto found = name.empty() ? graph_.values.end() : graph_.values.find(name);
      if (!name.empty() && found == graph_.values.end())
        refuse("reads " + in_quotes(name) + ", which nothing before it gives");
      call.inputs.push_back(name.empty() ? Value() : found->second);
      constants.push_back(call.inputs.back().constant);
      known = known && call.inputs.back().term < 0;
      whole = whole && (call.inputs.back().term < 0 || !graph_.of(call.inputs.back()).dims.empty());
    }
    std::vector<Value> results;
    const bool standard = node.domain().empty() || node.domain() == "ai.onnx";
    if (!standard || !whole) {
      results = {call.without_layer({})};
    } else if (node.op_type() == "Split" && !known) {
      results = split(call);
    } else {
      results = {read_operator(call, known, constants)};
    }
    for (int i = 0; i < node.output_size(); ++i) {
      if (node.output(i).empty()) continue;
      const auto at = static_cast<std::size_t>(i);
      define(node.output(i), at < results.size()
                                 ? results[at]
                                 : call.without_layer({}, "is used for its output " + std::to_string(i + 1)));
    }
  }

  Value read_operator(const Call& call, bool known, const std::vector<ConstantPtr>& constants) {
    if (known)
      if (const ConstantPtr folded = graph_.folder.fold(call.node, constants, graph_.data)) return {-1, folded};
    if (call.node.op_type() == "Shape" && call.has_term(0))
      return {-1, graph_.folder.shape(call.node, call.term(0).dims)};
    if (const auto value = recognise_layer(call)) return *value;
    if (const auto value = recognise_elementwise(call)) return *value;
    if (const auto value = recognise_shape(call)) return *value;
    return call.without_layer({});
  }

  // The term of the output. If the last operator is a softmax, the term before it.
  int output_term() {
    const std::string& name = file_.output(0).name();
    const auto found = graph_.values.find(name);
    if (found == graph_.values.end()) refuse("has an output " + in_quotes(name) + " that no node gives");
    if (found->second.term < 0) refuse("has an output that does not depend on the input");
    int term = found->second.term;
    if (const Term& last = graph_.of(term); last.op == "Softmax" || last.op == "LogSoftmax") {
      if (last.operands.size() != 1 || last.operands[0].term < 0) refuse("has a " + last.op + " without an input");
      graph_.notices.insert("the " + last.op + " at the end is left out: the loss applies it");
      term = last.operands[0].term;
    }
    const Term& last = graph_.of(term);
    if (last.build && !is_features(last))
      refuse("has an output of " + importing::to_string(last.dims) + "; only (N, classes) is accepted");
    return term;
  }

  OnnxImport build(int output) {
    std::vector<bool> needed(graph_.terms.size());
    needed[static_cast<std::size_t>(output)] = true;
    for (int i = output; i >= 0; --i)
      if (needed[static_cast<std::size_t>(i)])
        for (const int input : graph_.of(i).inputs) needed[static_cast<std::size_t>(input)] = true;
    const Dims& input = graph_.terms[0].dims;
    Builder net(name_, Shape(std::span(input).subspan(1)));
    std::vector<Node> nodes(graph_.terms.size());
    for (std::size_t i = 0; i <= static_cast<std::size_t>(output); ++i)
      if (needed[i]) at_node(graph_.terms[i].node, [&] { nodes[i] = build(net, graph_.terms[i], nodes); });
    const Node last = nodes[static_cast<std::size_t>(output)];
    OnnxImport imported{.network = {.model = at_node(nullptr, [&] { return net.build(last); })}};
    add_weights(net, imported.network);
    if (graph_.renamed_convolutions > 0)
      graph_.notices.insert(
          std::to_string(graph_.renamed_convolutions) +
          " convolutions have weights that the exporter has changed: batch normalisations were folded into them, and "
          "are not trained; export with training=torch.onnx.TrainingMode.TRAINING and do_constant_folding=False, or "
          "with dynamo=True and optimize=False, to keep them");
    imported.notices.assign(graph_.notices.begin(), graph_.notices.end());
    return imported;
  }

  Node build(Builder& net, const Term& term, const std::vector<Node>& nodes) {
    if (!term.build) {
      const std::string why = term.problem.empty() ? "has no layer" : term.problem;
      refuse(why + "; operators with layers are " + accepted_operators());
    }
    std::vector<Node> inputs;
    for (const int input : term.inputs) inputs.push_back(nodes[static_cast<std::size_t>(input)]);
    const Node node = term.build(net, inputs);
    check_shape(net.shape_of(node, ""), term);
    return node;
  }

  // Error(data) unless the layers give the shape that the first pass computed.
  static void check_shape(const Shape& given, const Term& term) {
    Dims dims(term.dims.begin() + 1, term.dims.end());
    if (term.layout == Layout::channels_last) dims = {dims[2], dims[0], dims[1]};
    if (term.layout == Layout::grouped || term.layout == Layout::shuffled) dims = {dims[0] * dims[1], dims[2], dims[3]};
    if (Shape(dims) != given)
      refuse("gives tensors of " + importing::to_string(dims) + ", for which the layers would give " +
             dp::to_string(given));
  }

  // Adds a tensor for every parameter and buffer of the network. Those without values in the file, such as the number
  // of batches of a normalisation, have the values that PyTorch begins with.
  void add_weights(Builder& net, TrainedModel& network) {
    std::set<std::string> names;
    std::set<const Constant*> used, shared;
    const auto add = [&](const std::string& name, const Shape& shape, DType type, float otherwise) {
      if (!names.insert(name).second) refuse("has two tensors of the name " + in_quotes(name));
      graph_.folder.spend(shape.numel());
      const auto source = net.sources.find(name);
      if (source == net.sources.end()) {
        Tensor tensor(shape, type);
        if (type == DType::f32) std::ranges::fill(tensor.span<float>(), otherwise);
        network.weights.emplace_back(name, std::move(tensor));
        return;
      }
      const Constant& values = *source->second.values;
      if (values.count() != shape.numel())
        refuse("tensor " + in_quotes(values.name) + " of " + importing::to_string(values.dims) + " does not fit " +
               in_quotes(name) + " of " + dp::to_string(shape));
      if (!used.insert(&values).second) shared.insert(&values);
      Tensor tensor = values.to_float32(shape);
      if (source->second.transposed) tensor = transposed(tensor);
      network.weights.emplace_back(name, std::move(tensor));
    };
    for (const ParameterSpec& parameter : network.model.parameters())
      add(parameter.name, parameter.shape, DType::f32, 0);
    for (const BufferSpec& buffer : network.model.buffers())
      add(buffer.name, buffer.shape, buffer.type, buffer.kind == BufferKind::running_var ? 1.0f : 0.0f);
    if (!shared.empty())
      graph_.notices.insert("several layers use the same tensor, such as " + in_quotes((*shared.begin())->name) +
                            ", and each trains a copy of its own: " + std::to_string(shared.size()) + " tensors");
  }

  // A matrix of (rows, columns). `stored` has its shape, but has the values in the order (columns, rows).
  static Tensor transposed(const Tensor& stored) {
    Tensor tensor(stored.shape());
    const std::int64_t rows = stored.shape()[0], cols = stored.shape()[1];
    const float* const from = stored.data<float>();
    float* const to = tensor.data<float>();
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) to[r * cols + c] = from[c * rows + r];
    return tensor;
  }

  const onnx::GraphProto& file_;
  const std::string& name_;
  Graph graph_;
};

OnnxImport import_model(std::string_view bytes, const std::string& name, const std::string& folder,
                        std::map<std::string, std::string>& metadata) {
  const onnx::ModelProto model = parse_model(bytes);
  for (const auto& entry : model.metadata_props()) metadata[entry.key()] = entry.value();
  TensorData data(folder);
  return at_node(nullptr, [&] { return Importer(model, name, data).read(); });
}

}  // namespace

OnnxImport onnx_import_bytes(std::string_view bytes, std::map<std::string, std::string>& metadata) {
  return import_model(bytes, "network", "", metadata);
}

OnnxImport onnx_import(const std::string& path, std::map<std::string, std::string>& metadata) {
  try {
    const std::string folder = std::filesystem::path(path).parent_path().string();
    return import_model(read_file(path, kMostBytes), path, folder.empty() ? "." : folder, metadata);
  } catch (const Error& error) {
    throw Error(ErrorCode::data, in_quotes(path) + ": " + error.what());
  }
}

}  // namespace dp
