#include "engine/fusion.h"

#include "dp/error.h"

namespace dp::engine {
namespace {

// Reads the model's layers one after another; layers that do nothing at run time are passed over.
class Fuser {
 public:
  Fuser(const Model& model, bool dropout) : model_(model), dropout_(dropout) { check_chain(); }

  std::vector<Node> run() {
    for (skip(); at_ < count(); skip()) nodes_.push_back(next_node());
    if (nodes_.empty())
      throw Error(ErrorCode::usage, "model '" + model_.name() + "' has no layer that computes anything");
    return std::move(nodes_);
  }

 private:
  std::size_t count() const { return model_.layers().size(); }
  const Layer& layer() const { return model_.layers()[at_]; }

  void check_chain() const {
    for (std::size_t i = 1; i < count(); ++i)
      if (model_.layers()[i].inputs != std::vector<int>{static_cast<int>(i) - 1})
        throw Error(ErrorCode::usage, "layer '" + model_.layers()[i].name + "' of model '" + model_.name() +
                                          "' does not read the layer before it; branches need a layer that joins them");
  }

  bool inactive(const Layer& layer) const {
    const auto* dropout = std::get_if<Dropout>(&layer.kind);
    return std::holds_alternative<Input>(layer.kind) || std::holds_alternative<Flatten>(layer.kind) ||
           (dropout != nullptr && (!dropout_ || dropout->p == 0.0f));
  }
  void skip() {
    while (at_ < count() && inactive(layer())) ++at_;
  }

  // Takes the next layer into `node` when it is of type T.
  template <typename T>
  bool take(Node& node) {
    if (at_ >= count() || !std::holds_alternative<T>(layer().kind)) return false;
    node.name += (node.name.empty() ? "" : "+") + label();
    node.output = layer().output;
    ++at_;
    return true;
  }
  std::string label() const {
    if (std::holds_alternative<Relu>(layer().kind)) return "relu";
    if (std::holds_alternative<MaxPool2d>(layer().kind)) return "max_pool";
    return layer().name;
  }

  // Whether the layer at_ is a ReLU that only a max-pool reads: there it works on fewer elements, with equal result.
  bool relu_before_pool() const {
    return at_ + 1 < count() && std::holds_alternative<Relu>(layer().kind) &&
           std::holds_alternative<MaxPool2d>(model_.layers()[at_ + 1].kind);
  }

  Node next_node() {
    Node node{};
    node.input = model_.layers()[at_ - 1].output;
    if (const auto* conv = std::get_if<Conv2d>(&layer().kind)) {
      node.kind = NodeKind::conv;
      node.window = {conv->kernel, conv->stride, conv->padding};
      attach_parameters(node, conv->bias);
      take<Conv2d>(node);
      if (!relu_before_pool()) node.relu = take<Relu>(node);
    } else if (const auto* linear = std::get_if<Linear>(&layer().kind)) {
      node.kind = NodeKind::linear;
      // Flatten moves nothing: the linear op reads what the layer before it wrote.
      if (!nodes_.empty())
        node.input = nodes_.back().output;
      else
        node.input = model_.input();
      attach_parameters(node, linear->bias);
      take<Linear>(node);
      node.relu = take<Relu>(node);
    } else if (relu_before_pool() || std::holds_alternative<MaxPool2d>(layer().kind)) {
      node.kind = NodeKind::pool;
      node.relu = take<Relu>(node);
      const auto& pool = std::get<MaxPool2d>(layer().kind);
      node.window = {pool.kernel, pool.stride, pool.padding};
      take<MaxPool2d>(node);
      if (at_ < count() && !inactive(layer()) && std::holds_alternative<Dropout>(layer().kind)) take_dropout(node);
    } else if (std::holds_alternative<Relu>(layer().kind)) {
      node.kind = NodeKind::relu;
      take<Relu>(node);
    } else {
      node.kind = NodeKind::dropout;
      take_dropout(node);
    }
    return node;
  }

  void take_dropout(Node& node) {
    node.dropout = kernels::DropoutSpec{std::get<Dropout>(layer().kind).p, static_cast<std::uint32_t>(at_)};
    take<Dropout>(node);
  }

  void attach_parameters(Node& node, bool bias) const {
    const auto& parameters = model_.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].layer == static_cast<int>(at_)) {
        node.weight = static_cast<int>(i);
        if (bias) node.bias = static_cast<int>(i) + 1;
        return;
      }
  }

  const Model& model_;
  const bool dropout_;
  std::size_t at_ = 0;
  std::vector<Node> nodes_;
};

}  // namespace

std::vector<Node> fuse(const Model& model, bool dropout) { return Fuser(model, dropout).run(); }

}  // namespace dp::engine
