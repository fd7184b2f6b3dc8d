// Descriptions of networks in JSON, and checkpoints that are read with them.
#include "dp/trained_model.h"

#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/files_support.h"
#include "dp/models.h"
#include "dp/random.h"
#include "support/catch.h"

using namespace dp::test;
using nlohmann::json;

namespace {

void require_equal(const dp::Model& a, const dp::Model& b) {
  REQUIRE(a.name() == b.name());
  REQUIRE(a.layers().size() == b.layers().size());
  for (std::size_t i = 0; i < a.layers().size(); ++i) {
    INFO(a.layers()[i].name);
    CHECK(a.layers()[i].name == b.layers()[i].name);
    CHECK(a.layers()[i].kind.index() == b.layers()[i].kind.index());
    CHECK(a.layers()[i].inputs == b.layers()[i].inputs);
    CHECK(a.layers()[i].output == b.layers()[i].output);
    CHECK(a.layers()[i].key == b.layers()[i].key);
  }
  REQUIRE(a.parameters().size() == b.parameters().size());
  for (std::size_t i = 0; i < a.parameters().size(); ++i) {
    INFO(a.parameters()[i].name);
    CHECK(a.parameters()[i].name == b.parameters()[i].name);
    CHECK(a.parameters()[i].shape == b.parameters()[i].shape);
    CHECK(a.parameters()[i].layer == b.parameters()[i].layer);
    CHECK(a.parameters()[i].init.kind == b.parameters()[i].init.kind);
    CHECK(a.parameters()[i].init.value == b.parameters()[i].init.value);
  }
  REQUIRE(a.buffers().size() == b.buffers().size());
  for (std::size_t i = 0; i < a.buffers().size(); ++i) {
    CHECK(a.buffers()[i].name == b.buffers()[i].name);
    CHECK(a.buffers()[i].shape == b.buffers()[i].shape);
  }
  CHECK(dp::to_json(a) == dp::to_json(b));
}

// Every layer, with no option at its default value.
dp::Model every_layer() {
  dp::ModelBuilder m("every layer \"x\"", dp::Shape{4, 12, 10});
  auto x = m.conv2d("conv", m.input(),
                    {.out_channels = 8,
                     .kernel = {3, 2},
                     .stride = {2, 1},
                     .padding = dp::HW(2, 1),
                     .dilation = {1, 2},
                     .groups = 2,
                     .bias = false,
                     .init = dp::ConvInit::kaiming_normal_fan_out});
  x = m.conv2d("same", x, {.out_channels = 8, .kernel = {2, 3}, .padding = dp::kSamePadding});
  x = m.batch_norm2d("bn", x, {.eps = 1e-3, .momentum = 0.2, .affine = false, .track_running_stats = false});
  x = m.batch_norm2d("bn_affine", x);
  x = m.group_norm("gn", x, {.groups = 4, .eps = 1e-4, .affine = false});
  x = m.layer_norm("ln", x, {.eps = 1e-6});
  x = m.instance_norm2d("in", x, {.affine = true});
  x = m.scale("gamma", m.pointwise_linear("point", x, {.out_features = 6, .bias = false}), 0.5f);
  x = m.conv_transpose2d("up", x,
                         {.out_channels = 4,
                          .kernel = 3,
                          .stride = 2,
                          .padding = 1,
                          .output_padding = {1, 0},
                          .groups = 2,
                          .bias = false,
                          .dilation = {1, 2}});
  x = m.prelu("prelu", m.relu(x), {.num_parameters = 4, .init = 0.1f});
  x = m.activation(x, dp::LeakyRelu{0.3f});
  x = m.activation(x, dp::Elu{0.7f});
  for (const dp::Function& function :
       {dp::Function{dp::Relu6{}}, dp::Function{dp::Sigmoid{}}, dp::Function{dp::Gelu{}}, dp::Function{dp::GeluTanh{}},
        dp::Function{dp::HardSigmoid{}}, dp::Function{dp::Tanh{}}, dp::Function{dp::Silu{}},
        dp::Function{dp::HardSwish{}}})
    x = m.activation(x, function);
  x = m.add(m.subtract(x, m.softmax(x)), m.channel_shuffle(x, 2));
  x = m.multiply(x, m.adaptive_avg_pool2d(x, 1));
  x = m.concat({x, m.slice(x, 1, 2)});
  x = m.max_pool2d(x, {.kernel = {3, 2}, .stride = 2, .padding = 1, .dilation = {1, 2}, .ceil_mode = true});
  x = m.avg_pool2d(x, {.kernel = 2, .stride = dp::HW(1, 2), .padding = 1});
  x = m.upsample(x, {.size = dp::HW(9, 7), .mode = dp::Upsample::Mode::bilinear, .align_corners = true});
  x = m.upsample(x, {.scale_factor = 1.3});
  x = m.zero_pad2d(x, {.left = 1, .right = -1, .top = 2, .bottom = 3});
  x = m.adaptive_avg_pool2d(x, {4, 3});
  x = m.dropout("drop", x, 0.1f);
  x = m.dropout2d("drop2d", x, 0.2f);
  x = m.stochastic_depth("depth", x, 0.3f);
  x = m.reshape(x, {3, 4, 6});
  x = m.dropout("last", m.flatten(x), 0.4f);
  return m.build(m.linear("fc", x, {.out_features = 5, .bias = false, .init = dp::Init{dp::InitKind::normal, 0.02f}}));
}

std::string refusal(const std::string& text) {
  const Outcome outcome = outcome_of([&] { dp::model_from_json(text); });
  CHECK(outcome.code == 3);
  return outcome.text;
}

json described() { return json::parse(dp::to_json(every_layer())); }

}  // namespace

TEST_CASE("a description gives an equal model for every network of the registry and every layer") {
  for (const dp::models::Entry& entry : dp::models::registry()) {
    INFO(entry.name);
    const bool small = entry.name.find("mnist") != std::string::npos || entry.name == "mlp";
    const dp::Model model = entry.make(small ? dp::Shape{1, 28, 28} : dp::Shape{3, 224, 224}, 10);
    require_equal(model, dp::model_from_json(dp::to_json(model)));
  }
  require_equal(every_layer(), dp::model_from_json(dp::to_json(every_layer())));
}

TEST_CASE("the test of every layer has every kind of layer and every function") {
  std::set<std::size_t> kinds, functions;
  const dp::Model model = every_layer();
  for (const dp::Layer& layer : model.layers()) {
    kinds.insert(layer.kind.index());
    if (const auto* activation = std::get_if<dp::Activation>(&layer.kind))
      functions.insert(activation->function.index());
  }
  CHECK(kinds.size() == std::variant_size_v<dp::LayerKind>);
  CHECK(functions.size() == std::variant_size_v<dp::Function>);
}

TEST_CASE("a damaged description of a network is refused, and the fault is named") {
  CHECK(refusal("") == "the description of the network: is not valid JSON; it is damaged");
  CHECK(refusal("[]") == "the description of the network: is not a JSON object");
  const auto changed = [](const auto& change) {
    json text = described();
    change(text);
    return refusal(text.dump());
  };
  const std::string begin = "the description of the network: ";
  CHECK(changed([](json& j) { j.erase("layers"); }) == begin + "'layers' is not a list");
  CHECK(changed([](json& j) { j["layers"] = json::array(); }) == begin + "it must have from 1 to 20,000 layers");
  CHECK(changed([](json& j) { j["layers"][0]["op"] = "conv3d"; }) == begin + "layer 'conv' is of an unknown kind");
  CHECK(changed([](json& j) { j["layers"][0]["inputs"] = {1}; }) ==
        begin + "layer 'conv': reads a node that does not exist");
  CHECK(changed([](json& j) { j["layers"][0]["inputs"] = {-1}; }) ==
        begin + "layer 'conv' reads a layer that does not exist");
  CHECK(changed([](json& j) {
          j["layers"][0]["kernel"] = {0, 1};
        }) == begin + "layer 'conv': kernel and stride must be positive; padding must not be negative");
  CHECK(changed([](json& j) { j["layers"][0]["kernel"] = {1, 1, 1}; }) == begin + "kernel is not a pair");
  CHECK(changed([](json& j) { j["layers"][0]["bias"] = 1; }) == begin + "bias is neither true nor false");
  CHECK(changed([](json& j) { j["layers"][0]["out_channels"] = 1 << 29; }) == begin + "out_channels is out of range");
  CHECK(changed([](json& j) { j["layers"][0]["out_channels"] = 1 << 28; }) ==
        begin + "the output of layer 'conv' is too large");
  CHECK(changed([](json& j) { j["layers"][0]["colour"] = 1; }) == begin + "layer 'conv' has an unknown option");
  CHECK(changed([](json& j) {
          j["layers"][0]["more_behind"] = {-1, 0};
        }) == begin + "layer 'conv': padding must not be negative");
  CHECK(changed([](json& j) { j["layers"][2]["name"] = "conv"; }) == begin + "layer 'conv': the name is used twice");
  CHECK(changed([](json& j) { j["init"].erase(0); }) == begin + "'init' does not have an entry for each parameter");
  CHECK(changed([](json& j) { j["init"][0][0] = "odd"; }) == begin + "init has an unknown value");
  CHECK(changed([](json& j) { j["input"] = {4, -1, 10}; }).starts_with(begin));
  CHECK(changed([](json& j) { j["input"] = {1 << 20, 1 << 20, 10}; }) == begin + "the input is too large");
}

TEST_CASE("a description with changed bytes is refused or gives a model, and nothing else happens") {
  const std::string text = dp::to_json(every_layer());
  dp::Random random(7, dp::RandomUse::mix);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = text;
    for (int k = 0; k < 1 + i % 3; ++k)
      damaged[random.below(static_cast<std::uint32_t>(damaged.size()))] = "0123456789[]{},\":-aez"[random.below(21)];
    const Outcome outcome = outcome_of([&] { dp::model_from_json(damaged); });
    REQUIRE((outcome.code == 0 || outcome.code == 3));
    refused += outcome.code == 3;
  }
  CHECK(refused > 1000);
}
