// The layers of a model as JSON. Options with their default values are left out.
#include <concepts>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "dp/error.h"
#include "dp/model.h"
#include "dp/trained_model.h"
#include "engine/checkpoint/safetensors.h"

namespace dp {
namespace {

// Limits for files. With them products of sizes stay far below 2^63, and reading a file takes little time.
constexpr std::int64_t kLargestNumber = std::int64_t{1} << 28;
constexpr std::int64_t kLargestTensor = std::int64_t{1} << 34;  // elements of a layer's output
constexpr std::size_t kMostLayers = 20'000;

// The options of each kind of layer: visit(name, value, default value). Writer and reader both use these. How initial
// values are drawn is a property of the parameters instead.
template <typename Visit>
void options_of(Conv2d& layer, Visit&& visit) {
  const Conv2d by_default;
  visit("out_channels", layer.out_channels, by_default.out_channels);
  visit("kernel", layer.kernel, by_default.kernel);
  visit("stride", layer.stride, by_default.stride);
  visit("padding", static_cast<HW&>(layer.padding), HW(0));
  visit("more_behind", layer.padding.more_behind, HW(0));
  visit("dilation", layer.dilation, by_default.dilation);
  visit("groups", layer.groups, by_default.groups);
  visit("bias", layer.bias, by_default.bias);
}
template <typename Visit>
void options_of(ConvTranspose2d& layer, Visit&& visit) {
  const ConvTranspose2d by_default;
  visit("out_channels", layer.out_channels, by_default.out_channels);
  visit("kernel", layer.kernel, by_default.kernel);
  visit("stride", layer.stride, by_default.stride);
  visit("padding", layer.padding, by_default.padding);
  visit("output_padding", layer.output_padding, by_default.output_padding);
  visit("groups", layer.groups, by_default.groups);
  visit("bias", layer.bias, by_default.bias);
  visit("dilation", layer.dilation, by_default.dilation);
}
template <typename Visit>
void options_of(BatchNorm2d& layer, Visit&& visit) {
  const BatchNorm2d by_default;
  visit("eps", layer.eps, by_default.eps);
  visit("momentum", layer.momentum, by_default.momentum);
  visit("affine", layer.affine, by_default.affine);
  visit("track_running_stats", layer.track_running_stats, by_default.track_running_stats);
}
template <typename Visit>
void options_of(GroupNorm& layer, Visit&& visit) {
  const GroupNorm by_default;
  visit("groups", layer.groups, by_default.groups);
  visit("eps", layer.eps, by_default.eps);
  visit("affine", layer.affine, by_default.affine);
}
template <typename Visit>
void options_of(LayerNorm& layer, Visit&& visit) {
  const LayerNorm by_default;
  visit("eps", layer.eps, by_default.eps);
  visit("affine", layer.affine, by_default.affine);
}
template <typename Visit>
void options_of(Slice& layer, Visit&& visit) {
  visit("first", layer.first, std::int64_t{0});
  visit("count", layer.count, std::int64_t{0});
}
template <typename Visit>
void options_of(ChannelShuffle& layer, Visit&& visit) {
  visit("groups", layer.groups, ChannelShuffle().groups);
}
template <typename Visit>
void options_of(Linear& layer, Visit&& visit) {
  visit("out_features", layer.out_features, Linear().out_features);
  visit("bias", layer.bias, Linear().bias);
}
template <typename Visit>
void options_of(PRelu& layer, Visit&& visit) {
  visit("num_parameters", layer.num_parameters, PRelu().num_parameters);
}
template <typename Visit>
void options_of(MaxPool2d& layer, Visit&& visit) {
  const MaxPool2d by_default;
  visit("kernel", layer.kernel, by_default.kernel);
  visit("stride", layer.stride, by_default.stride);
  visit("padding", layer.padding, by_default.padding);
  visit("dilation", layer.dilation, by_default.dilation);
  visit("ceil_mode", layer.ceil_mode, by_default.ceil_mode);
}
template <typename Visit>
void options_of(AvgPool2d& layer, Visit&& visit) {
  const AvgPool2d by_default;
  visit("kernel", layer.kernel, by_default.kernel);
  visit("stride", layer.stride, by_default.stride);
  visit("padding", layer.padding, by_default.padding);
}
template <typename Visit>
void options_of(AdaptiveAvgPool2d& layer, Visit&& visit) {
  visit("output", layer.output, AdaptiveAvgPool2d().output);
}
template <typename Visit>
void options_of(Upsample& layer, Visit&& visit) {
  const Upsample by_default;
  visit("size", layer.size, by_default.size);
  visit("scale_factor", layer.scale_factor, by_default.scale_factor);
  visit("mode", layer.mode, by_default.mode);
  visit("align_corners", layer.align_corners, by_default.align_corners);
}
template <typename Visit>
void options_of(ZeroPad2d& layer, Visit&& visit) {
  visit("left", layer.left, 0);
  visit("right", layer.right, 0);
  visit("top", layer.top, 0);
  visit("bottom", layer.bottom, 0);
}
template <typename Visit>
void options_of(Dropout& layer, Visit&& visit) {
  visit("p", layer.p, Dropout().p);
  visit("unit", layer.unit, Dropout().unit);
}
template <typename Visit>
void options_of(LeakyRelu& function, Visit&& visit) {
  visit("negative_slope", function.negative_slope, LeakyRelu().negative_slope);
}
template <typename Visit>
void options_of(Elu& function, Visit&& visit) {
  visit("alpha", function.alpha, Elu().alpha);
}
template <typename Visit>
void options_of(Times& function, Visit&& visit) {
  visit("factor", function.factor, Times().factor);
}
template <typename Kind, typename Visit>
void options_of(Kind& /*layer*/, Visit&& /*visit*/) {
  static_assert(std::is_empty_v<Kind>, "its options would be lost: add an overload of options_of()");
}

// Names of the values of an enum, in their order.
constexpr const char* kInits[] = {"uniform", "normal", "constant", "dirac"};
constexpr const char* kUnits[] = {"element", "channel", "sample"};
constexpr const char* kModes[] = {"nearest", "bilinear"};
constexpr std::span<const char* const> names_of(InitKind) { return kInits; }
constexpr std::span<const char* const> names_of(Dropout::Unit) { return kUnits; }
constexpr std::span<const char* const> names_of(Upsample::Mode) { return kModes; }

const char* op_of(const Conv2d&) { return "conv2d"; }
const char* op_of(const ConvTranspose2d&) { return "conv_transpose2d"; }
const char* op_of(const BatchNorm2d&) { return "batch_norm2d"; }
const char* op_of(const GroupNorm&) { return "group_norm"; }
const char* op_of(const LayerNorm&) { return "layer_norm"; }
const char* op_of(const Add&) { return "add"; }
const char* op_of(const Multiply&) { return "multiply"; }
const char* op_of(const Concat&) { return "concat"; }
const char* op_of(const Slice&) { return "slice"; }
const char* op_of(const ChannelShuffle&) { return "channel_shuffle"; }
const char* op_of(const Linear&) { return "linear"; }
const char* op_of(const Relu&) { return "relu"; }
const char* op_of(const Activation& layer) { return name_of(layer.function); }
const char* op_of(const PRelu&) { return "prelu"; }
const char* op_of(const Softmax&) { return "softmax"; }
const char* op_of(const MaxPool2d&) { return "max_pool2d"; }
const char* op_of(const AvgPool2d&) { return "avg_pool2d"; }
const char* op_of(const AdaptiveAvgPool2d&) { return "adaptive_avg_pool2d"; }
const char* op_of(const Upsample&) { return "upsample"; }
const char* op_of(const ZeroPad2d&) { return "zero_pad2d"; }
const char* op_of(const Dropout&) { return "dropout"; }
const char* op_of(const Flatten&) { return "flatten"; }
const char* op_of(const Reshape&) { return "reshape"; }
const char* op_of(const Input&) { return "input"; }

// JSON names of two kinds of convolutions. Their weights have the shapes (O,I) and (C,1,1).
constexpr const char* kPointwiseLinear = "pointwise_linear";
constexpr const char* kScale = "scale";

class OptionWriter {
 public:
  explicit OptionWriter(nlohmann::ordered_json& json) : json_(json) {}

  template <typename T>
  void operator()(const char* name, const T& value, const T& by_default) {
    if (!(value == by_default)) json_[name] = written(value);
  }

 private:
  static nlohmann::ordered_json written(const HW& pair) { return {pair.h, pair.w}; }
  static nlohmann::ordered_json written(float number) { return static_cast<double>(number); }
  template <typename T>
  static nlohmann::ordered_json written(const std::optional<T>& value) {
    return written(*value);  // a Model has no empty value where the default has one
  }
  template <typename T>
  static nlohmann::ordered_json written(const T& value) {
    if constexpr (std::is_enum_v<T>)
      return names_of(value)[static_cast<std::size_t>(value)];
    else
      return value;
  }

  nlohmann::ordered_json& json_;
};

[[noreturn]] void fail(const std::string& why) {
  throw Error(ErrorCode::data, "the description of the network: " + why);
}

std::int64_t number_in(const nlohmann::json& json, const std::string& name) {
  if (!json.is_number_integer()) fail(name + " is not a whole number");
  const auto number = json.get<std::int64_t>();
  if (number < -kLargestNumber || number > kLargestNumber) fail(name + " is out of range");
  return number;
}

const nlohmann::json& list_in(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_array()) fail(std::string("'") + name + "' is not a list");
  return *found;
}

std::vector<std::int64_t> numbers_in(const nlohmann::json& json, const char* name) {
  std::vector<std::int64_t> numbers;
  for (const nlohmann::json& number : list_in(json, name)) numbers.push_back(number_in(number, name));
  return numbers;
}

std::string text_in(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_string()) fail(std::string("'") + name + "' is not a text");
  return found->get<std::string>();
}

template <typename Enum>
Enum choice_in(const nlohmann::json& json, const std::string& name) {
  const auto names = names_of(Enum());
  for (std::size_t i = 0; i < names.size(); ++i)
    if (json == names[i]) return static_cast<Enum>(i);
  fail(name + " has an unknown value");
}

class OptionReader {
 public:
  explicit OptionReader(const nlohmann::json& json) : json_(json) {}

  template <typename T>
  void operator()(const char* name, T& value, const T& by_default) {
    const auto found = json_.find(name);
    if (found == json_.end())
      value = by_default;
    else
      read(*found, name, value), ++used_;
  }
  std::size_t used() const { return used_; }

 private:
  static void read(const nlohmann::json& json, const std::string& name, HW& pair) {
    if (!json.is_array() || json.size() != 2) fail(name + " is not a pair");
    pair = {static_cast<int>(number_in(json[0], name)), static_cast<int>(number_in(json[1], name))};
  }
  static void read(const nlohmann::json& json, const std::string& name, bool& value) {
    if (!json.is_boolean()) fail(name + " is neither true nor false");
    value = json.get<bool>();
  }
  template <std::floating_point T>
  static void read(const nlohmann::json& json, const std::string& name, T& value) {
    if (!json.is_number()) fail(name + " is not a number");
    value = static_cast<T>(json.get<double>());
  }
  template <std::integral T>
  static void read(const nlohmann::json& json, const std::string& name, T& value) {
    value = static_cast<T>(number_in(json, name));
  }
  template <typename T>
  static void read(const nlohmann::json& json, const std::string& name, std::optional<T>& value) {
    read(json, name, value.emplace());
  }
  template <typename Enum>
  requires std::is_enum_v<Enum>
  static void read(const nlohmann::json& json, const std::string& name, Enum& value) {
    value = choice_in<Enum>(json, name);
  }

  const nlohmann::json& json_;
  std::size_t used_ = 0;
};

// Adds the layers of a description to a model, with the checks of ModelBuilder.
class Rebuilder : public ModelBuilder {
 public:
  using ModelBuilder::ModelBuilder;

  Node add_layer(const nlohmann::json& json);
  void set_inits(const nlohmann::json& list);

 private:
  // A layer's options; fails if there is an option that it does not have.
  template <typename Kind>
  Kind options(Kind kind) {
    OptionReader reader(*json_);
    options_of(kind, reader);
    if (reader.used() + kCommon != json_->size()) fail("layer '" + name_ + "' has an unknown option");
    return kind;
  }
  Node x() const {
    if (inputs_.size() != 1) fail("layer '" + name_ + "' does not have one input");
    return inputs_.front();
  }
  std::pair<Node, Node> two() const {
    if (inputs_.size() != 2) fail("layer '" + name_ + "' does not have two inputs");
    return {inputs_[0], inputs_[1]};
  }
  std::optional<Node> make(const std::string& op);
  template <std::size_t Index = 0>
  std::optional<Node> make_activation(const std::string& op);

  static constexpr std::size_t kCommon = 3;  // op, name, inputs
  const nlohmann::json* json_ = nullptr;
  std::string name_;
  std::vector<Node> inputs_;
};

template <std::size_t Index>
std::optional<Rebuilder::Node> Rebuilder::make_activation(const std::string& op) {
  if constexpr (Index < std::variant_size_v<Function>) {
    using Kind = std::variant_alternative_t<Index, Function>;
    if (op == Kind::kName) return activation(x(), options(Kind()));
    return make_activation<Index + 1>(op);
  }
  return std::nullopt;
}

std::optional<Rebuilder::Node> Rebuilder::make(const std::string& op) {
  const auto is = [&](const auto& kind) { return op == op_of(kind); };
  if (is(Conv2d())) return conv2d(name_, x(), options(Conv2d()));
  if (op == kPointwiseLinear) return pointwise_linear(name_, x(), options(Linear()));
  if (op == kScale) {
    options(Relu());
    return scale(name_, x());
  }
  if (is(ConvTranspose2d())) return conv_transpose2d(name_, x(), options(ConvTranspose2d()));
  if (is(BatchNorm2d())) return batch_norm2d(name_, x(), options(BatchNorm2d()));
  if (is(GroupNorm())) return group_norm(name_, x(), options(GroupNorm()));
  if (is(LayerNorm())) return layer_norm(name_, x(), options(LayerNorm()));
  if (is(Linear())) return linear(name_, x(), options(Linear()));
  if (is(PRelu())) return prelu(name_, x(), options(PRelu()));
  if (is(Dropout())) {
    const Dropout wanted = options(Dropout());
    switch (wanted.unit) {
      case Dropout::Unit::element: return dropout(name_, x(), wanted.p);
      case Dropout::Unit::channel: return dropout2d(name_, x(), wanted.p);
      case Dropout::Unit::sample: return stochastic_depth(name_, x(), wanted.p);
    }
  }
  if (is(Slice())) {
    const Slice wanted = options(Slice());
    return slice(x(), wanted.first, wanted.count);
  }
  if (is(ChannelShuffle())) return channel_shuffle(x(), options(ChannelShuffle()).groups);
  if (is(MaxPool2d())) return max_pool2d(x(), options(MaxPool2d()));
  if (is(AvgPool2d())) return avg_pool2d(x(), options(AvgPool2d()));
  if (is(AdaptiveAvgPool2d())) return adaptive_avg_pool2d(x(), options(AdaptiveAvgPool2d()).output);
  if (is(Upsample())) return upsample(x(), options(Upsample()));
  if (is(ZeroPad2d())) return zero_pad2d(x(), options(ZeroPad2d()));
  if (is(Reshape())) {
    if (json_->size() != kCommon + 1) fail("layer '" + name_ + "' has an unknown option");
    return reshape(x(), numbers_in(*json_, "to"));
  }
  std::optional<Node> node;
  if (is(Relu())) node = relu(x());
  if (is(Softmax())) node = softmax(x());
  if (is(Flatten())) node = flatten(x());
  if (is(Concat())) node = concat(inputs_);
  if (is(Add())) node = add(two().first, two().second);
  if (is(Multiply())) node = multiply(two().first, two().second);
  if (node) options(Relu());  // these have no options
  return node;
}

Rebuilder::Node Rebuilder::add_layer(const nlohmann::json& json) {
  if (!json.is_object()) fail("a layer is not an object");
  json_ = &json, name_ = text_in(json, "name"), inputs_.clear();
  const std::string op = text_in(json, "op");
  for (const std::int64_t input : numbers_in(json, "inputs")) {
    if (input < 0) fail("layer '" + name_ + "' reads a layer that does not exist");
    inputs_.push_back({static_cast<int>(input)});
  }
  std::optional<Node> node = make_activation(op);
  if (!node) node = make(op);
  if (!node) fail("layer '" + name_ + "' is of an unknown kind");
  if (shape_of(*node, name_).numel() > kLargestTensor) fail("the output of layer '" + name_ + "' is too large");
  return *node;
}

void Rebuilder::set_inits(const nlohmann::json& list) {
  if (list.size() != parameters().size()) fail("'init' does not have an entry for each parameter");
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_array() || list[i].size() != 2 || !list[i][1].is_number()) fail("'init' has an invalid entry");
    parameters()[i].init = {choice_in<InitKind>(list[i][0], "init"), static_cast<float>(list[i][1].get<double>())};
  }
}

const char* written_op(const Model& model, int index) {
  const Layer& layer = model.layers()[static_cast<std::size_t>(index)];
  if (std::holds_alternative<Conv2d>(layer.kind))
    for (const ParameterSpec& parameter : model.parameters()) {
      if (parameter.layer != index) continue;
      if (parameter.shape.rank() == 2) return kPointwiseLinear;
      if (parameter.shape.rank() == 3) return kScale;
    }
  return std::visit([](const auto& kind) { return op_of(kind); }, layer.kind);
}

nlohmann::ordered_json written_layer(const Model& model, int index) {
  const Layer& layer = model.layers()[static_cast<std::size_t>(index)];
  const std::string op = written_op(model, index);
  nlohmann::ordered_json json{{"op", op}, {"name", layer.name}, {"inputs", layer.inputs}};
  OptionWriter writer(json);
  LayerKind kind = layer.kind;
  if (op == kPointwiseLinear) {
    const auto& conv = std::get<Conv2d>(layer.kind);
    kind = Linear{.out_features = conv.out_channels, .bias = conv.bias};
  } else if (op == kScale) {
    kind = Relu();  // no options
  } else if (op == op_of(Reshape())) {
    json["to"] = std::vector<std::int64_t>(layer.output.dims().begin(), layer.output.dims().end());
  }
  std::visit(
      [&](auto& options) {
        if constexpr (std::is_same_v<std::decay_t<decltype(options)>, Activation>)
          std::visit([&](auto& function) { options_of(function, writer); }, options.function);
        else
          options_of(options, writer);
      },
      kind);
  if (const auto* up = std::get_if<Upsample>(&layer.kind); up != nullptr && up->scale_factor) json.erase("size");
  return json;
}

}  // namespace

std::string to_json(const Model& model) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array(), inits = nlohmann::ordered_json::array();
  for (int i = 1; i < static_cast<int>(model.layers().size()); ++i) layers.push_back(written_layer(model, i));
  for (const ParameterSpec& parameter : model.parameters())
    inits.push_back({kInits[static_cast<std::size_t>(parameter.init.kind)], static_cast<double>(parameter.init.value)});
  const auto input = model.input().dims();
  const nlohmann::ordered_json json{{"name", model.name()},
                                    {"input", std::vector<std::int64_t>(input.begin(), input.end())},
                                    {"layers", std::move(layers)},
                                    {"init", std::move(inits)}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Model model_from_json(std::string_view text) try {
  const nlohmann::json json = parse_small_json(std::string(text), "the description of the network");
  const nlohmann::json& layers = list_in(json, "layers");
  if (layers.empty() || layers.size() > kMostLayers) fail("it must have from 1 to 20,000 layers");
  const Shape input(numbers_in(json, "input"));
  if (input.numel() > kLargestTensor) fail("the input is too large");
  Rebuilder builder(text_in(json, "name"), input);
  GraphBuilder::Node last = builder.input();
  std::vector<std::string> names;
  for (const nlohmann::json& layer : layers) {
    last = builder.add_layer(layer);
    names.push_back(text_in(layer, "name"));
  }
  builder.set_inits(list_in(json, "init"));
  Model model = builder.build(last);
  if (model.layers().size() != names.size() + 1) fail("a layer does not stand for itself");
  for (std::size_t i = 0; i < names.size(); ++i)
    if (model.layers()[i + 1].name != names[i]) fail("layer " + std::to_string(i + 1) + " has another name");
  return model;
} catch (const Error& error) {
  if (error.code() == ErrorCode::data) throw;
  fail(error.what());
}

}  // namespace dp
