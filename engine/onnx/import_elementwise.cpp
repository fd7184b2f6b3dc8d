// Elementwise operators, and layers that exporters write as several of them: activations, normalisations, dropout.
// Such a pattern is searched backwards from its last operator.
#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/onnx/import_graph.h"

namespace dp::importing {
namespace {

// Compares the numbers in patterns. The tolerance is for exporters, which round them to float32.
bool near(double a, double b) { return std::abs(a - b) <= 1e-5 * std::abs(b); }

std::optional<double> number_in(const Value& value) {
  if (!value.constant || value.constant->count() != 1) return std::nullopt;
  const double number = value.constant->at(0);
  return value.constant->whole() ? number : shortest(static_cast<float>(number));
}

bool is(const Term& term, const char* op, std::size_t inputs) {
  return term.op == op && term.operands.size() == inputs;
}

// For a term `op` of two inputs of which one is the number: the other input. -1 if it is no such term.
int beside(const Term& term, const char* op, double number) {
  if (!is(term, op, 2)) return -1;
  for (std::size_t i = 0; i < 2; ++i)
    if (const auto given = number_in(term.operands[i]); given && std::abs(*given - number) <= 1e-5 * std::abs(number))
      return term.operands[1 - i].term;
  return -1;
}

Value activation(const Call& call, int from, const Function& function, const char* name = nullptr) {
  const Value value =
      call.layer({from}, [=](Builder& net, const std::vector<Node>& in) { return net.activation(in[0], function); });
  if (name != nullptr) call.graph.terms.back().op = name;
  return value;
}

// A term without a layer that may be part of a pattern, such as Erf(x).
Value part(const Call& call, std::string problem = {}) {
  std::optional<Dims> dims = Dims();
  Layout layout = Layout::other;
  for (const Value& input : call.inputs) {
    if (input.left_out()) continue;
    if (dims) dims = broadcast(*dims, input.constant ? input.constant->dims : call.graph.of(input).dims);
    if (input.term >= 0 && dims && call.graph.of(input).dims == *dims) layout = call.graph.of(input).layout;
  }
  const Value value = call.without_layer(dims, std::move(problem));
  call.graph.terms.back().layout = layout;
  return value;
}

// --- products --------------------------------------------------------------------------------------------------------

// A product of any number of factors: number * terms[0] * terms[1] * ... Exporters write the factors in any order.
struct Product {
  double number = 1;
  std::vector<int> terms{};
};

// The factors of a term, and theirs in turn. The term `whole` is taken as one factor. x^2 is x * x.
Product product_of(const Graph& graph, int index, int whole, int depth = 0) {
  const Term& term = graph.of(index);
  const bool divides = is(term, "Div", 2), powers = is(term, "Pow", 2);
  if (index == whole || depth == 4 || !(is(term, "Mul", 2) || divides || powers)) return {1, {index}};
  if (powers) {
    const auto exponent = number_in(term.operands[1]);
    if (term.operands[0].term < 0 || !exponent || (*exponent != 2 && *exponent != 3)) return {1, {index}};
    return {1, std::vector<int>(static_cast<std::size_t>(*exponent), term.operands[0].term)};
  }
  Product product;
  for (std::size_t i = 0; i < 2; ++i) {
    const Value& factor = term.operands[i];
    if (const auto number = number_in(factor); number && !(divides && i == 0)) {
      product.number *= divides ? 1 / *number : *number;
    } else if (factor.term >= 0 && !(divides && i == 1)) {
      const Product inner = product_of(graph, factor.term, whole, depth + 1);
      product.number *= inner.number;
      product.terms.insert(product.terms.end(), inner.terms.begin(), inner.terms.end());
    } else {
      return {1, {index}};
    }
  }
  std::ranges::sort(product.terms);
  return product;
}

bool equals(const Product& product, double number, std::vector<int> terms) {
  std::ranges::sort(terms);
  return near(product.number, number) && product.terms == terms;
}

// Whether the product `index` is GELU: x * (1 + erf(x / sqrt(2))) / 2, or the same with
// tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)) for erf. Returns x. `sum`: the factor that may be 1 + erf(...).
std::optional<std::pair<int, Function>> gelu_with(const Graph& graph, int index, int sum) {
  const int curve_index = beside(graph.of(sum), "Add", 1);
  if (curve_index < 0) return std::nullopt;
  const Term& curve = graph.of(curve_index);
  if (!(is(curve, "Erf", 1) || is(curve, "Tanh", 1)) || curve.operands[0].term < 0) return std::nullopt;
  const Term& inner = graph.of(curve.operands[0]);
  for (const Value& candidate : inner.operands) {
    if (candidate.term < 0) continue;
    const int x = candidate.term;
    if (curve.op == "Erf") {
      if (equals(product_of(graph, curve.operands[0].term, x), std::sqrt(0.5), {x}) &&
          equals(product_of(graph, index, x), 0.5, {x, sum}))
        return std::pair{x, Function(Gelu{})};
      continue;
    }
    const Term& polynomial = graph.of(x);  // here `x` is the sum x + 0.044715 * x^3
    if (!is(polynomial, "Add", 2) || !equals(product_of(graph, curve.operands[0].term, x), std::sqrt(2 / M_PI), {x}))
      continue;
    for (std::size_t i = 0; i < 2; ++i) {
      const int root = polynomial.operands[i].term, cube = polynomial.operands[1 - i].term;
      if (root >= 0 && cube >= 0 && equals(product_of(graph, cube, root), 0.044715, {root, root, root}) &&
          equals(product_of(graph, index, root), 0.5, {root, sum}))
        return std::pair{root, Function(GeluTanh{})};
    }
  }
  return std::nullopt;
}

// For the term relu6(x + 3): x. -1 if it is another term. With a factor of 1/6 this is hard-sigmoid.
int hard_input(const Graph& graph, int index) {
  const Term& clipped = graph.of(index);
  return clipped.op == "relu6" && clipped.operands[0].term >= 0 ? beside(graph.of(clipped.operands[0]), "Add", 3) : -1;
}

// The activation that ends with the product `index`, if it is one of those that exporters write as several operators.
std::optional<Value> activation_in(const Call& call, int index) {
  const Graph& graph = call.graph;
  const Product product = product_of(graph, index, -1);
  if (product.terms.size() == 1 && near(product.number, 1.0 / 6))
    if (const int x = hard_input(graph, product.terms[0]); x >= 0)
      return activation(call, x, HardSigmoid{}, "HardSigmoid");
  const Term& term = graph.of(index);
  for (std::size_t i = 0; i < term.operands.size(); ++i) {
    const Value &a = term.operands[i], &b = term.operands[1 - i];
    if (a.term < 0 || b.term < 0 || term.op != "Mul") continue;
    if (is(graph.of(b), "Sigmoid", 1) && graph.of(b).operands[0].term == a.term)
      return activation(call, a.term, Silu{}, "Silu");
    if (graph.of(b).op == "HardSigmoid" && graph.of(b).inputs == std::vector<int>{a.term})
      return activation(call, a.term, HardSwish{}, "HardSwish");
  }
  if (product.terms.size() == 2 && near(product.number, 1.0 / 6))
    for (std::size_t i = 0; i < 2; ++i)
      if (const int x = hard_input(graph, product.terms[i]); x >= 0 && x == product.terms[1 - i])
        return activation(call, x, HardSwish{}, "HardSwish");
  // GELU has a sum 1 + erf(...) among its factors, or among the factors of a factor.
  std::vector<int> sums = product.terms;
  for (const Value& operand : term.operands)
    if (operand.term >= 0) {
      sums.push_back(operand.term);
      for (const Value& deeper : graph.of(operand).operands)
        if (deeper.term >= 0) sums.push_back(deeper.term);
    }
  for (const int sum : sums)
    if (const auto gelu = gelu_with(graph, index, sum)) return activation(call, gelu->first, gelu->second, "Gelu");
  return std::nullopt;
}

// --- random masks ----------------------------------------------------------------------------------------------------

// If the term is a random mask of zeros and ones: the probability of a one.
std::optional<double> kept_by(const Graph& graph, int index) {
  const Term* term = &graph.of(index);
  if (is(*term, "Cast", 1) && term->operands[0].term >= 0) term = &graph.of(term->operands[0]);
  if (is(*term, "Bernoulli", 1) && term->operands[0].constant && term->operands[0].constant->count() > 0) {
    const double p = term->operands[0].constant->at(0);
    return term->operands[0].constant->filled_with(p) ? std::optional(shortest(static_cast<float>(p))) : std::nullopt;
  }
  if (!is(*term, "Less", 2) || term->operands[0].term < 0) return std::nullopt;
  const Term& random = graph.of(term->operands[0]);
  if (random.op != "RandomUniformLike" || float_of(*random.node, "low", 0) != 0 ||
      float_of(*random.node, "high", 1) != 1)
    return std::nullopt;
  return number_in(term->operands[1]);
}

// A tensor with a random mask: x * (mask / p), or (x * mask) / p, where p is the mask's probability of a one.
struct Masked {
  int x = -1, mask = -1;  // -1: the term is something else
  double kept = 1;        // p
};
Masked masked_by(const Graph& graph, const Term& term) {
  const auto divided = is(term, "Div", 2) ? number_in(term.operands[1]) : std::nullopt;
  if (divided && term.operands[0].term < 0) return {};
  const Term& pair = divided ? graph.of(term.operands[0]) : term;
  if (!is(pair, "Mul", 2) || pair.operands[0].term < 0 || pair.operands[1].term < 0) return {};
  for (std::size_t i = 0; i < 2; ++i) {
    const Product mask = product_of(graph, pair.operands[i].term, -1);
    if (mask.terms.size() != 1) continue;
    const auto kept = kept_by(graph, mask.terms[0]);
    if (kept && near(mask.number / divided.value_or(1), 1 / *kept))
      return {pair.operands[1 - i].term, mask.terms[0], *kept};
  }
  return {};
}

// Dropout, if the product `index` is one: of elements, channels or samples, which the dimensions of the mask say.
std::optional<Value> dropout_in(const Call& call, int index) {
  const Graph& graph = call.graph;
  const Masked masked = masked_by(graph, graph.of(index));
  const double p = 1 - masked.kept;
  if (masked.x < 0 || !(p >= 0 && p < 1)) return std::nullopt;
  const Term& x = graph.of(masked.x);
  const Dims& mask = graph.of(masked.mask).dims;
  Dropout::Unit unit = Dropout::Unit::element;
  if (mask != x.dims) {
    if (!is_image(x) || x.layout != Layout::plain || mask.size() != 4 || mask[0] != x.dims[0] || mask[2] != 1 ||
        mask[3] != 1 || (mask[1] != x.dims[1] && mask[1] != 1))
      return std::nullopt;
    unit = mask[1] == 1 ? Dropout::Unit::sample : Dropout::Unit::channel;
  }
  // From float64: 1 - 0.8f in float32 is not 0.2f.
  const auto dropped = static_cast<float>(p);
  return call.layer({masked.x}, [=, &node = call.node](Builder& net, const std::vector<Node>& in) {
    const std::string name = net.layer_name(node, {});
    if (unit == Dropout::Unit::sample) return net.stochastic_depth(name, in[0], dropped);
    return unit == Dropout::Unit::channel ? net.dropout2d(name, in[0], dropped) : net.dropout(name, in[0], dropped);
  });
}

// --- normalisations of several operators -----------------------------------------------------------------------------

// (x - mean) / sqrt(mean of (x - mean)^2 + eps), if the division is one. With means over the channels this is
// LayerNorm, with means over the batch and the pixels a BatchNorm2d without running statistics.
std::optional<Value> normalisation_in(const Call& call) {
  const Graph& graph = call.graph;
  if (!call.has_term(0) || !call.has_term(1)) return std::nullopt;
  const Term &centred = call.term(0), &deviation = call.term(1);
  if (!is(centred, "Sub", 2) || !is(deviation, "Sqrt", 1) || deviation.operands[0].term < 0) return std::nullopt;
  const Term& sum = graph.of(deviation.operands[0]);
  const int from = centred.operands[0].term, mean_index = centred.operands[1].term;
  if (!is(sum, "Add", 2) || from < 0 || mean_index < 0) return std::nullopt;
  const bool first = sum.operands[0].term >= 0;
  const int variance_index = sum.operands[first ? 0 : 1].term;
  const auto eps = number_in(sum.operands[first ? 1 : 0]);
  if (variance_index < 0 || !eps) return std::nullopt;
  const Term &mean = graph.of(mean_index), &variance = graph.of(variance_index), &x = graph.of(from);
  if (mean.op != "ReduceMean" || variance.op != "ReduceMean" || mean.axes != variance.axes || mean.axes.empty() ||
      mean.operands[0].term != from || variance.operands[0].term < 0)
    return std::nullopt;
  const int square = variance.operands[0].term, difference = call.inputs[0].term;
  if (!equals(product_of(graph, square, difference), 1, {difference, difference})) return std::nullopt;
  const bool features = is_features(x);
  const bool channels = (is_image(x) || features) && mean.axes == Dims{static_cast<std::int64_t>(channel_axis(x))};
  const bool batch = is_image(x) && x.layout == Layout::plain && mean.axes == Dims{0, 2, 3};
  if (!channels && !batch) return std::nullopt;
  const double epsilon = *eps;
  const Value value = call.layer({from}, [=, &node = call.node](Builder& net, const std::vector<Node>& in) {
    const std::string name = net.layer_name(node, {});
    if (channels)
      return net.as_before(net.layer_norm(name, net.as_image(in[0]), {.eps = epsilon, .affine = false}), features);
    return net.batch_norm2d(name, in[0], {.eps = epsilon, .affine = false, .track_running_stats = false});
  });
  Term& made = call.graph.terms.back();
  made.op = channels ? "layer_norm" : "batch_norm";
  made.eps = epsilon;
  return value;
}

// norm(x) * weight + bias, with a value for each channel: the normalisation with its weights.
std::optional<Value> affine_in(const Call& call, int product_index, const ConstantPtr& bias) {
  const Graph& graph = call.graph;
  const Term& product = graph.of(product_index);
  if (!is(product, "Mul", 2)) return std::nullopt;
  const bool first = product.operands[0].term >= 0;
  const int norm_index = product.operands[first ? 0 : 1].term;
  const ConstantPtr weight = product.operands[first ? 1 : 0].constant;
  if (norm_index < 0 || !weight) return std::nullopt;
  const Term& norm = graph.of(norm_index);
  const bool known = norm.op == "group_norm" || norm.op == "layer_norm" || norm.op == "batch_norm";
  const std::int64_t channels = known ? norm.dims[channel_axis(norm)] : 0;
  if (!known || !per_channel(*weight, norm) || !per_channel(*bias, norm) || weight->count() != channels ||
      bias->count() != channels)
    return std::nullopt;
  const std::string op = norm.op;
  const double eps = norm.eps;
  const std::int64_t groups = norm.groups;
  const bool features = is_features(norm);
  return call.layer({norm.inputs.at(0)}, [=, &node = call.node](Builder& net, const std::vector<Node>& in) {
    const std::string name = net.layer_name(node, {{weight.get(), "weight"}, {bias.get(), "bias"}});
    net.sources[name + ".weight"] = {weight};
    net.sources[name + ".bias"] = {bias};
    if (op == "group_norm") return net.group_norm(name, in[0], {.groups = groups, .eps = eps});
    if (op == "layer_norm") return net.as_before(net.layer_norm(name, net.as_image(in[0]), {.eps = eps}), features);
    return net.batch_norm2d(name, in[0], {.eps = eps, .track_running_stats = false});
  });
}

// --- sums and products -----------------------------------------------------------------------------------------------

// Whether both have layers, and the same layout.
bool alike(const Term& a, const Term& b) { return a.build && b.build && a.layout == b.layout; }

Value sum(const Call& call) {
  const bool first = call.has_term(0);
  if (first && call.has_term(1)) {
    const Term &a = call.term(0), &b = call.term(1);
    const int i = call.inputs[0].term, j = call.inputs[1].term;
    if (!alike(a, b)) return part(call);
    if (a.dims != b.dims) return part(call, "adds tensors of " + to_string(a.dims) + " and " + to_string(b.dims));
    if (i == j) return activation(call, i, Times{2});
    return call.layer({i, j}, [](Builder& net, const std::vector<Node>& in) { return net.add(in[0], in[1]); });
  }
  const int from = call.inputs[first ? 0 : 1].term;
  const ConstantPtr bias = call.constant(first ? 1 : 0);
  if (const auto linear = with_bias(call, call.graph.of(from), bias)) return *linear;
  if (const auto affine = affine_in(call, from, bias)) return *affine;
  if (bias->count() == 1 && bias->filled_with(0)) return call.same(from);
  return part(call, "adds a constant of " + to_string(bias->dims) + "; only the bias of a layer is accepted");
}

Value difference(const Call& call) {
  if (!call.has_term(0) || !call.has_term(1)) return part(call, "subtracts a constant, or from a constant");
  const Term &a = call.term(0), &b = call.term(1);
  const int i = call.inputs[0].term, j = call.inputs[1].term;
  if (!alike(a, b) || a.dims != b.dims || i == j) return part(call);
  return call.layer({i, j}, [](Builder& net, const std::vector<Node>& in) { return net.subtract(in[0], in[1]); });
}

// Whether `factor` has the dimensions of `over`, or one value for each of its channels, or for each of its pixels.
bool spreads(const Term& factor, const Term& over) {
  if (factor.dims == over.dims) return true;
  if (!is_image(factor) || !is_image(over)) return false;
  const std::size_t axis = channel_axis(over);
  bool channel = true, pixel = true;
  for (std::size_t i = 1; i < 4; ++i) {
    channel = channel && factor.dims[i] == (i == axis ? over.dims[i] : 1);
    pixel = pixel && factor.dims[i] == (i == axis ? 1 : over.dims[i]);
  }
  return factor.dims[0] == over.dims[0] && (channel || pixel);
}

// The product of two tensors, or with a constant.
Value plain_product(const Call& call) {
  const bool first = call.has_term(0);
  if (first && call.has_term(1)) {
    const Term &a = call.term(0), &b = call.term(1);
    const int i = call.inputs[0].term, j = call.inputs[1].term;
    const bool b_spreads = spreads(b, a);
    if (!alike(a, b) || i == j || !(b_spreads || spreads(a, b))) return part(call);
    Dims dims = b_spreads ? a.dims : b.dims;
    return call.layer(std::move(dims), a.layout, {i, j},
                      [](Builder& net, const std::vector<Node>& in) { return net.multiply(in[0], in[1]); });
  }
  const int from = call.inputs[first ? 0 : 1].term;
  const ConstantPtr factor = call.constant(first ? 1 : 0);
  const Term& x = call.graph.of(from);
  if (!x.build) return part(call);
  if (factor->count() == 1) {
    if (broadcast(x.dims, factor->dims) != x.dims) return part(call);
    const auto number = static_cast<float>(factor->at(0));
    if (factor->stored && factor->name.find("::") == std::string::npos && factor->name.find('.') != std::string::npos)
      call.graph.notices.insert("the number " + in_quotes(factor->name) +
                                " is not trained: it stays a constant factor");
    return activation(call, from, Times{number}, "Mul");
  }
  if (!is_image(x) || !per_channel(*factor, x))
    return part(call, "multiplies by a constant of " + to_string(factor->dims));
  return call.layer({from}, [=, &node = call.node](Builder& net, const std::vector<Node>& in) {
    // The name of the parameter is also that of the layer.
    std::string name = factor->stored ? factor->name : std::string();
    if (name.empty() || net.sources.contains(name) || name.find_first_of("/:") != std::string::npos)
      name = net.layer_name(node, {}) + ".scale";
    net.sources[name] = {factor};
    return net.scale(name, in[0]);
  });
}

// Mul, or Div by a number. First it becomes a term of its own. If it is the last operator of a pattern, the layer of
// the pattern becomes the result, and the term is not used.
Value product(const Call& call) {
  const bool divides = call.node.op_type() == "Div";
  if (divides) {
    if (const auto norm = normalisation_in(call)) return *norm;
    const auto number = call.has_term(0) ? number_in(call.inputs[1]) : std::nullopt;
    if (!number) return part(call, "divides by other than a number");
  }
  Value value;
  if (divides && call.term(0).build) {
    const auto number = static_cast<float>(1 / *number_in(call.inputs[1]));
    value = activation(call, call.inputs[0].term, Times{number}, "Div");
  } else {
    value = divides ? part(call) : plain_product(call);
  }
  if (const auto pattern = activation_in(call, value.term)) return *pattern;
  if (const auto pattern = dropout_in(call, value.term)) return *pattern;
  return value;
}

// --- operators of one tensor -----------------------------------------------------------------------------------------

Value clip(const Call& call) {
  const int from = call.inputs.at(0).term;
  const double low = call.has(1) ? call.number(1) : -INFINITY, high = call.has(2) ? call.number(2) : INFINITY;
  if (low == 0 && high == 6) return activation(call, from, Relu6{}, "relu6");
  if (low == 0 && high >= 3.4e38)
    return call.layer({from}, [](Builder& net, const std::vector<Node>& in) { return net.relu(in[0]); });
  return part(call, "clips to other than 0 to 6");
}

Value softmax(const Call& call) {
  const Term& x = call.term(0);
  const auto axis = static_cast<std::size_t>(axis_of(int_of(call.node, "axis", -1), x.dims.size()));
  if ((!is_image(x) && !is_features(x)) || axis != channel_axis(x))
    return part(call, "is over other than the channels");
  if (call.node.op_type() == "LogSoftmax") return part(call, "is accepted as the last operator only");
  return call.layer({call.inputs[0].term},
                    [](Builder& net, const std::vector<Node>& in) { return net.softmax(in[0]); });
}

Value prelu(const Call& call) {
  const Term& x = call.term(0);
  const ConstantPtr slope = call.constant(1);
  const std::int64_t count = slope->count();
  if (count != 1 && !per_channel(*slope, x)) return part(call, "has other slopes than one, or one for each channel");
  return call.layer({call.inputs[0].term}, [=, &node = call.node](Builder& net, const std::vector<Node>& in) {
    const std::string name = net.layer_name(node, {{slope.get(), "weight"}});
    net.sources[name + ".weight"] = {slope};
    return net.prelu(name, in[0], {.num_parameters = count});
  });
}

std::optional<Function> function_of(const onnx::NodeProto& node) {
  const std::string& op = node.op_type();
  if (op == "LeakyRelu") return LeakyRelu{float_of(node, "alpha", 0.01f)};
  if (op == "Elu") return Elu{float_of(node, "alpha", 1)};
  if (op == "Sigmoid") return Sigmoid{};
  if (op == "Tanh") return Tanh{};
  if (op == "HardSwish") return HardSwish{};
  if (op == "HardSigmoid") {
    if (!near(float_of(node, "alpha", 0.2f), 1.0 / 6) || float_of(node, "beta", 0.5f) != 0.5f)
      refuse("has other slopes than PyTorch's Hardsigmoid, 1/6 and 0.5");
    return HardSigmoid{};
  }
  if (op == "Gelu") {
    if (text_of(node, "approximate", "none") == "tanh") return GeluTanh{};
    return Gelu{};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Value> recognise_elementwise(const Call& call) {
  const std::string& op = call.node.op_type();
  const bool binary = op == "Add" || op == "Sub" || op == "Mul" || op == "Div" || op == "Less" || op == "Pow";
  if (binary && (call.count() != 2 || !call.has(0) || !call.has(1))) refuse("does not have two inputs");
  if (op == "Add") return sum(call);
  if (op == "Sub") return difference(call);
  if (op == "Mul" || op == "Div") return product(call);
  if (op == "Less" || op == "Pow" || op == "Erf" || op == "Sqrt" || op == "RandomUniformLike" || op == "Bernoulli")
    return part(call);
  if (op == "CastLike" && call.has(0)) return call.inputs[0];
  if (!call.has_term(0)) return std::nullopt;
  if (op == "Cast") return call.term(0).build ? call.same(call.inputs[0].term) : part(call);
  if (op == "Identity") return call.same(call.inputs[0].term);
  if (op == "Clip") return clip(call);
  if (op == "Softmax" || op == "LogSoftmax") return softmax(call);
  if (op == "PRelu") return prelu(call);
  if (op == "Relu")
    return call.layer({call.inputs[0].term}, [](Builder& net, const std::vector<Node>& in) { return net.relu(in[0]); });
  if (const auto function = function_of(call.node)) return activation(call, call.inputs[0].term, *function);
  return std::nullopt;
}

}  // namespace dp::importing
