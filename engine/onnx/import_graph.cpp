#include "engine/onnx/import_graph.h"

#include <algorithm>
#include <utility>

namespace dp::importing {
namespace {

// The module in the name that TorchScript's exporter gives a node: "layer1.0.conv1" of "/layer1/layer1.0/conv1/Conv".
// There, "layer1.0" repeats "layer1" and replaces it. Empty for other names.
std::string module_of(std::string_view node_name) {
  if (node_name.empty() || node_name[0] != '/') return {};
  std::string module, last;
  node_name.remove_prefix(1);
  for (std::size_t end; (end = node_name.find('/')) != std::string_view::npos; node_name.remove_prefix(end + 1)) {
    const std::string part(node_name.substr(0, end));
    if (!last.empty() && part.starts_with(last + "."))
      module.replace(module.size() - last.size(), last.size(), part);
    else
      module += (module.empty() ? "" : ".") + part;
    last = part;
  }
  return module;
}

// The name with '_' for everything but letters, digits, '.', '_' and '-'.
std::string plain(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const bool fits =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    out += fits ? c : '_';
  }
  return out.substr(0, 200);
}

// "conv1" of a weight "conv1.weight", with the suffix "weight". Empty if the name has another form.
std::string layer_of(const Constant& weight, std::string_view suffix) {
  const std::string_view name = weight.name;
  if (!weight.stored || name.size() < suffix.size() + 2 || !name.ends_with(suffix)) return {};
  const std::string_view layer = name.substr(0, name.size() - suffix.size() - 1);
  if (name[layer.size()] != '.' || plain(layer) != layer) return {};
  return std::string(layer);
}

}  // namespace

std::string Builder::layer_name(const onnx::NodeProto& node, const std::vector<Named>& weights) {
  for (const Named& weight : weights)
    if (weight.weight != nullptr)
      if (const std::string name = layer_of(*weight.weight, weight.suffix);
          !name.empty() && used_.emplace(name, 1).second)
        return name;
  std::string name = plain(module_of(node.name()));
  if (name.empty()) name = plain(std::string_view(node.name()).substr(node.name().starts_with("node_") ? 5 : 0));
  if (name.empty()) name = plain(node.op_type());
  int& count = used_[name];
  if (++count == 1) return name;
  std::string own = name + "_" + std::to_string(count);
  while (!used_.emplace(own, 1).second) own = name + "_" + std::to_string(++count);
  return own;
}

bool Builder::is_weight(const Constant& constant, const char* suffix) { return !layer_of(constant, suffix).empty(); }

const Term& Call::term(std::size_t i) const {
  if (!has_term(i)) refuse("requires a tensor that the network computes as its input " + std::to_string(i + 1));
  return graph.of(inputs[i]);
}
ConstantPtr Call::constant(std::size_t i) const {
  if (const ConstantPtr found = constant_or_null(i)) return found;
  refuse("requires a constant, or a weight, as its input " + std::to_string(i + 1));
}
double Call::number(std::size_t i) const {
  const ConstantPtr found = constant(i);
  if (found->count() != 1) refuse("requires one number as its input " + std::to_string(i + 1));
  return found->whole() ? found->at(0) : shortest(static_cast<float>(found->at(0)));
}
std::optional<std::vector<std::int64_t>> Call::axes(const char* name, std::size_t i) const {
  if (has(i)) return integers(i);
  if (attribute(node, name, onnx::AttributeProto::INTS) != nullptr) return ints_of(node, name, {});
  return std::nullopt;
}

Value Call::layer(Dims dims, Layout layout, std::vector<int> from, Build build) const {
  return graph.add({.node = &node,
                    .op = node.op_type(),
                    .operands = inputs,
                    .dims = std::move(dims),
                    .layout = layout,
                    .inputs = std::move(from),
                    .build = std::move(build)});
}
Value Call::layer(std::vector<int> from, Build build) const {
  const Term& first = graph.of(from.at(0));
  return layer(Dims(first.dims), first.layout, std::move(from), std::move(build));
}
Value Call::same(int term) const { return {term}; }
Value Call::without_layer(std::optional<Dims> dims, std::string problem) const {
  std::vector<int> from;
  for (const Value& input : inputs)
    if (input.term >= 0) from.push_back(input.term);
  return graph.add({.node = &node,
                    .op = node.op_type(),
                    .operands = inputs,
                    .dims = dims.value_or(Dims()),
                    .inputs = std::move(from),
                    .problem = std::move(problem)});
}

std::size_t channel_axis(const Term& term) { return term.layout == Layout::channels_last ? 3 : 1; }

bool is_image(const Term& term) {
  return term.dims.size() == 4 && (term.layout == Layout::plain || term.layout == Layout::channels_last);
}
bool is_features(const Term& term) { return term.dims.size() == 2 && term.layout == Layout::plain; }

bool over_pixels(const Term& term, std::vector<std::int64_t> axes) {
  if (!is_image(term)) return false;
  for (std::int64_t& axis : axes) axis = axis_of(axis, 4);
  std::ranges::sort(axes);
  return axes == (term.layout == Layout::plain ? Dims{2, 3} : Dims{1, 2});
}

bool per_channel(const Constant& constant, const Term& term) {
  if (!is_image(term) && !is_features(term)) return false;
  const std::size_t axis = channel_axis(term), rank = term.dims.size();
  if (constant.dims.size() > rank) return false;
  const std::size_t missing = rank - constant.dims.size();
  for (std::size_t i = 0; i < constant.dims.size(); ++i)
    if (constant.dims[i] != (i + missing == axis ? term.dims[axis] : 1)) return false;
  return axis >= missing;
}

}  // namespace dp::importing
