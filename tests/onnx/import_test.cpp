// Networks of PyTorch that were exported as ONNX (import_networks.py), and files that are refused.
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dp/onnx.h"
#include "onnx/onnx_runtime.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;
using Dims = std::vector<std::int64_t>;

const std::string kFiles = DP_ONNX_TESTS "/import_files";
constexpr double kTolerance = 1e-5;  // of the largest output

struct Expected {
  Tensor images, logits;
};
Expected expected_of(const std::string& file) {
  Expected expected;
  for (const auto& [name, tensor] : read_safetensors(file))
    (name == "images" ? expected.images : expected.logits) = tensor;
  return expected;
}

double error_of(const TrainedModel& network, const Expected& expected) {
  DataParallel net(network.model, on_cpus(1));
  net.set_weights(network.weights);
  return output_error(net.predict(expected.images), expected.logits);
}

bool mentions(const OnnxImport& imported, const std::string& text) {
  return std::ranges::any_of(imported.notices, [&](const auto& n) { return n.find(text) != std::string::npos; });
}

std::set<std::string> names_of(const NamedTensors& tensors) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) names.insert(name);
  return names;
}

template <typename Kind>
std::vector<Kind> layers_of(const Model& model) {
  std::vector<Kind> found;
  for (const Layer& layer : model.layers())
    if (const auto* const kind = std::get_if<Kind>(&layer.kind)) found.push_back(*kind);
  return found;
}

// --- files that are written here -------------------------------------------------------------------------------------

onnx::TensorProto& floats(onnx::GraphProto& graph, const std::string& name, const Dims& dims, float value = 0.5f) {
  onnx::TensorProto& tensor = *graph.add_initializer();
  tensor.set_name(name);
  tensor.set_data_type(onnx::TensorProto::FLOAT);
  std::int64_t count = 1;
  for (const std::int64_t dim : dims) tensor.add_dims(dim), count *= dim;
  const std::vector<float> values(static_cast<std::size_t>(count), value);
  tensor.set_raw_data(values.data(), values.size() * sizeof(float));
  return tensor;
}

onnx::NodeProto& node(onnx::GraphProto& graph, const std::string& op, const std::vector<std::string>& inputs,
                      const std::string& output) {
  onnx::NodeProto& added = *graph.add_node();
  added.set_name("/" + output + "/" + op);
  added.set_op_type(op);
  for (const std::string& input : inputs) added.add_input(input);
  added.add_output(output);
  return added;
}

void describe(onnx::ValueInfoProto& value, const std::string& name, const Dims& dims) {
  value.set_name(name);
  auto& tensor = *value.mutable_type()->mutable_tensor_type();
  tensor.set_elem_type(onnx::TensorProto::FLOAT);
  for (const std::int64_t dim : dims) {
    auto& added = *tensor.mutable_shape()->add_dim();
    if (dim > 0) added.set_dim_value(dim);  // else dynamic
  }
}

// x -> Flatten -> f -> Gemm(w) -> y, with images of (1, 2, 2).
onnx::ModelProto small_file() {
  onnx::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(17);
  onnx::GraphProto& graph = *model.mutable_graph();
  describe(*graph.add_input(), "x", {0, 1, 2, 2});
  describe(*graph.add_output(), "y", {0, 3});
  floats(graph, "w", {4, 3});
  node(graph, "Flatten", {"x"}, "f");
  node(graph, "Gemm", {"f", "w"}, "y");
  return model;
}

OnnxImport read(const std::string& bytes) {
  const TemporaryFolder folder;
  write_text(folder / "net.onnx", bytes);
  return read_onnx(folder / "net.onnx");
}

// The message with which a changed small_file() is refused.
std::string refusal(const std::function<void(onnx::ModelProto&)>& change) {
  onnx::ModelProto model = small_file();
  change(model);
  try {
    read(model.SerializeAsString());
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::data);
    return error.what();
  }
  return "accepted";
}

bool contains(const std::string& text, const std::string& part) {
  INFO(text);
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

}  // namespace

TEST_CASE("networks that PyTorch's exporters wrote give PyTorch's logits") {
  int read = 0;
  for (const auto& file : std::filesystem::directory_iterator(kFiles)) {
    if (file.path().extension() != ".onnx") continue;
    const std::string name = file.path().filename().string();
    INFO(name);
    const OnnxImport imported = read_onnx(file.path().string());
    const double error =
        error_of(imported.network, expected_of(kFiles + "/" + name.substr(0, name.find('.')) + ".safetensors"));
    CHECK(error <= kTolerance);
    CHECK(imported.network.model.name() == file.path().string());
    CHECK(mentions(imported, "LogSoftmax at the end is left out") == name.starts_with("activations"));
    ++read;
  }
  CHECK(read >= 40);
}

TEST_CASE("networks that were read from ONNX are written and read again without a change") {
  const TemporaryFolder folder;
  for (const char* const name : {"residual.ts17-train", "activations.ts20", "mobile.dynamo-train", "norms.dynamo",
                                 "next.ts17-train", "decoder.dynamo", "mlp.ts13"}) {
    INFO(name);
    TrainedModel network = read_onnx(kFiles + "/" + name + ".onnx").network;
    for (std::int64_t i = 0; i < network.model.output()[0]; ++i)
      network.classes.push_back("class " + std::to_string(i));
    const bool images = network.model.input().rank() == 3;
    if (images) network.preprocessing = Preprocessing{{{0.5f, 0.25f, 0.125f}, {1, 2, 3}}, Resizing{.crop_pct = 0.75}};
    write_onnx(folder / "net.onnx", network, {.dynamic_batch = true});
    const OnnxImport again = read_onnx(folder / "net.onnx");
    CHECK(again.notices.empty());
    CHECK(names_of(again.network.weights) == names_of(network.weights));
    CHECK(again.network.classes == network.classes);
    REQUIRE(again.network.preprocessing.has_value() == images);
    if (images) CHECK(again.network.preprocessing->normalization.mean == network.preprocessing->normalization.mean);
    if (images) CHECK(again.network.preprocessing->resizing->crop_pct == 0.75);
    const std::string file = kFiles + "/" + std::string(name, std::string(name).find('.')) + ".safetensors";
    CHECK(error_of(again.network, expected_of(file)) <= kTolerance);
  }
}

TEST_CASE("layers of a training export have PyTorch's names and options") {
  const OnnxImport imported = read_onnx(kFiles + "/residual.ts17-train.onnx");
  CHECK(imported.notices.empty());
  CHECK(names_of(imported.network.weights) ==
        std::set<std::string>{"conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var",
                              "bn1.num_batches_tracked", "layer2.weight", "layer2.bias", "bn2.running_mean",
                              "bn2.running_var", "bn2.num_batches_tracked", "fc.weight", "fc.bias"});
  const auto norms = layers_of<BatchNorm2d>(imported.network.model);
  REQUIRE(norms.size() == 2);
  CHECK(norms[0].eps == 1e-5);
  CHECK(norms[0].momentum == Approx(0.1).epsilon(1e-12));
  CHECK(norms[0].affine);
  CHECK_FALSE(norms[1].affine);
  const auto dropouts = layers_of<Dropout>(imported.network.model);
  REQUIRE(dropouts.size() == 1);
  CHECK(dropouts[0].p == 0.3f);
}

TEST_CASE("masks that exporters compute are dropout") {
  const Model mobile = read_onnx(kFiles + "/mobile.dynamo-train.onnx").network.model;
  const auto dropouts = layers_of<Dropout>(mobile);
  REQUIRE(dropouts.size() == 2);
  CHECK(dropouts[0].unit == Dropout::Unit::channel);
  CHECK(dropouts[0].p == 0.25f);
  CHECK(dropouts[1].unit == Dropout::Unit::sample);
  CHECK(dropouts[1].p == 0.2f);
  const auto depths = layers_of<Dropout>(read_onnx(kFiles + "/next.ts17-train.onnx").network.model);
  REQUIRE(depths.size() == 2);
  CHECK(depths[0].unit == Dropout::Unit::sample);
  CHECK(depths[0].p == 0.1f);
  CHECK(depths[1].p == 0.2f);
  for (const char* const form : {"ts17-train", "dynamo-train", "dynamo21-train"}) {  // Bernoulli
    INFO(form);
    const auto drawn = layers_of<Dropout>(read_onnx(kFiles + "/maximum." + form + ".onnx").network.model);
    REQUIRE(drawn.size() == 1);
    CHECK(drawn[0].unit == Dropout::Unit::sample);
    CHECK(drawn[0].p == Approx(0.2f));
  }
}

TEST_CASE("an evaluation export says that batch normalisations were folded, and keeps the names of modules") {
  const OnnxImport imported = read_onnx(kFiles + "/residual.ts17.onnx");
  CHECK(mentions(imported, "2 convolutions have weights that the exporter has changed"));
  CHECK(names_of(imported.network.weights) ==
        std::set<std::string>{"conv1.weight", "conv1.bias", "layer2.weight", "layer2.bias", "fc.weight", "fc.bias"});
}

TEST_CASE("several operators that PyTorch has as one are one layer") {
  const Model model = read_onnx(kFiles + "/activations.ts13.onnx").network.model;
  std::map<std::string, int> counts;
  for (const Activation& activation : layers_of<Activation>(model)) ++counts[name_of(activation.function)];
  CHECK(counts["gelu"] == 1);
  CHECK(counts["gelu_tanh"] == 1);
  CHECK(counts["silu"] == 1);
  CHECK(counts["hardswish"] == 2);
  CHECK(counts["hardsigmoid"] == 1);
  CHECK(layers_of<GroupNorm>(read_onnx(kFiles + "/norms.ts13.onnx").network.model).size() == 4);
  CHECK(layers_of<LayerNorm>(read_onnx(kFiles + "/norms.ts13.onnx").network.model).size() == 2);
  CHECK(layers_of<ChannelShuffle>(read_onnx(kFiles + "/mobile.ts17.onnx").network.model).size() == 1);
}

TEST_CASE("invented names of layers give way to those of a network") {
  ModelBuilder net("names", {3, 4, 4});
  auto x = net.relu(net.input());                                 // layer1
  x = net.conv2d("layer3", x, {.out_channels = 3, .kernel = 1});  // the name of the next
  x = net.conv2d("layer1", net.relu(x), {.out_channels = 3, .kernel = 1});
  const Model model = net.build(net.relu(x));
  std::set<std::string> names;
  for (const Layer& layer : model.layers()) names.insert(layer.name);
  CHECK(names.size() == model.layers().size());
  CHECK(names.contains("layer1"));
  CHECK(names.contains("layer3"));
  ModelBuilder twice("names", {3, 4, 4});
  const auto y = twice.conv2d("layer1", twice.input(), {.out_channels = 3, .kernel = 1});
  CHECK_THROWS_AS(twice.conv2d("layer1", y, {.out_channels = 3, .kernel = 1}), Error);
}

// --- refusals --------------------------------------------------------------------------------------------------------

TEST_CASE("a file that is written here is accepted") {
  const TrainedModel network = read(small_file().SerializeAsString()).network;
  CHECK(network.model.input() == Shape{1, 2, 2});
  CHECK(network.model.output() == Shape{3});
  REQUIRE(network.weights.size() == 1);
  CHECK(network.weights[0].second.shape() == Shape{3, 4});
}

TEST_CASE("an operator without a layer is refused by the node's name, with the list of operators") {
  const std::string why = refusal([](onnx::ModelProto& model) {
    onnx::GraphProto& graph = *model.mutable_graph();
    graph.mutable_node(1)->set_input(0, "s");
    *graph.add_node() = graph.node(1);
    onnx::NodeProto& sine = *graph.mutable_node(1);
    sine.Clear();
    sine.set_name("/block.3/Sin"), sine.set_op_type("Sin"), sine.add_input("f"), sine.add_output("s");
  });
  CHECK(contains(why, "node '/block.3/Sin' ('Sin')"));
  CHECK(contains(why, "operators with layers are Add, AveragePool"));
}

TEST_CASE("operators of other domains and functions are refused") {
  CHECK(contains(refusal([](auto& model) { model.mutable_graph()->mutable_node(0)->set_domain("com.microsoft"); }),
                 "com.microsoft::Flatten"));
}

TEST_CASE("graphs that are none are refused") {
  using M = onnx::ModelProto;
  CHECK(contains(refusal([](M& m) { m.mutable_graph()->mutable_node(0)->set_input(0, "y"); }),
                 "which nothing before it gives"));
  CHECK(
      contains(refusal([](M& m) { m.mutable_graph()->mutable_node(0)->set_input(0, "nothing"); }), "reads 'nothing'"));
  CHECK(contains(refusal([](M& m) { m.mutable_graph()->mutable_node(1)->set_output(0, "x"); }), "output 'y'"));
  CHECK(contains(refusal([](M& m) { m.mutable_graph()->mutable_node(1)->add_output("f"); }), "twice"));
  CHECK(contains(refusal([](M& m) { floats(*m.mutable_graph(), "w", {1}); }), "'w' twice"));
  CHECK(contains(refusal([](M& m) { m.mutable_graph()->clear_input(); }), "no input"));
  CHECK(contains(refusal([](M& m) { describe(*m.mutable_graph()->add_input(), "z", {1, 4}); }), "'x' and 'z'"));
  CHECK(contains(refusal([](M& m) { describe(*m.mutable_graph()->add_output(), "f", {1, 4}); }), "2 outputs"));
  CHECK(contains(refusal([](M& m) { m.mutable_graph()->clear_node(); }), "output 'y'"));
  CHECK(contains(refusal([](M& m) { m.clear_graph(); }), "no graph"));
  CHECK(contains(refusal([](M& m) { m.mutable_opset_import(0)->set_version(11); }), "opset 11"));
}

TEST_CASE("inputs of other forms are refused") {
  const auto with_input = [](const Dims& dims) {
    return refusal([&](onnx::ModelProto& model) {
      model.mutable_graph()->clear_input();
      describe(*model.mutable_graph()->add_input(), "x", dims);
    });
  };
  CHECK(contains(with_input({0, 1, 2, 0}), "only the batch may be dynamic"));
  CHECK(contains(with_input({0, 1, 2}), "3 dimensions"));
  CHECK(contains(with_input({1, 1 << 24, 1 << 24, 1 << 24}), "too large"));
  CHECK(contains(with_input({1, 3, 2, 2}), "for 12 features"));
  CHECK(contains(refusal([](auto& m) {
                   m.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type()->set_elem_type(
                       onnx::TensorProto::INT64);
                 }),
                 "has no floats"));
}

TEST_CASE("tensors whose sizes are wrong are refused before anything is allocated") {
  const auto with_weight = [](const std::function<void(onnx::TensorProto&)>& change) {
    return refusal([&](onnx::ModelProto& model) { change(*model.mutable_graph()->mutable_initializer(0)); });
  };
  CHECK(contains(with_weight([](auto& w) { w.set_dims(0, 5); }), "has 48 bytes instead of 60"));
  CHECK(contains(with_weight([](auto& w) { w.set_dims(0, -4); }), "negative"));
  CHECK(contains(with_weight([](auto& w) { w.set_dims(0, std::int64_t{1} << 62); }), "too large"));
  CHECK(contains(with_weight([](auto& w) { w.clear_raw_data(); }), "has 0 values"));
  CHECK(contains(with_weight([](auto& w) { w.set_data_type(onnx::TensorProto::STRING); }), "elements of type 8"));
}

TEST_CASE("a weight that an operator would give fewer elements than it has is refused") {
  const std::string why = refusal([](onnx::ModelProto& model) {
    onnx::GraphProto& graph = *model.mutable_graph();
    graph.clear_initializer();
    floats(graph, "w", {2, 4, 3});
    onnx::TensorProto& axes = *graph.add_initializer();
    axes.set_name("axes"), axes.set_data_type(onnx::TensorProto::INT64), axes.add_dims(1), axes.add_int64_data(0);
    node(graph, "Squeeze", {"w", "axes"}, "w2");
    graph.mutable_node()->SwapElements(1, 2);
    graph.mutable_node(2)->set_input(1, "w2");
  });
  CHECK(contains(why, "drops an axis of 2"));
}

TEST_CASE("constants that grow without end are refused") {
  const std::string why = refusal([](onnx::ModelProto& model) {
    onnx::GraphProto& graph = *model.mutable_graph();
    onnx::TensorProto& sizes = *graph.add_initializer();
    sizes.set_name("sizes"), sizes.set_data_type(onnx::TensorProto::INT64), sizes.add_dims(2);
    sizes.add_int64_data(1 << 16), sizes.add_int64_data(1 << 16);
    const onnx::NodeProto last = graph.node(1);
    graph.mutable_node()->RemoveLast();
    node(graph, "ConstantOfShape", {"sizes"}, "w2");
    *graph.add_node() = last;
    graph.mutable_node(2)->set_input(1, "w2");
  });
  CHECK(contains(why, "makes much more tensors than the file has values"));
}

TEST_CASE("a small file that would become many objects is refused before it is parsed") {
  const auto field = [](char tag, const std::string& content) {
    std::string bytes{tag};
    for (std::size_t left = content.size(); left > 0; left >>= 7)
      bytes += static_cast<char>((left & 0x7f) | (left > 0x7f ? 0x80 : 0));
    return bytes + content;
  };
  const auto why_refused = [&](int attributes) {
    std::string node;
    for (int i = 0; i < attributes; ++i) node += std::string("\x2a\0", 2);  // an attribute without content: 256 bytes
    try {
      read(small_file().SerializeAsString() + field(0x3a, field(0x0a, node)));  // one more node in the graph
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(contains(why_refused(1'000'000), "would take more than 256 MiB beside its weights"));
  CHECK(why_refused(1'000) == "accepted");
}

TEST_CASE("weights in other files are read from the folder of the model only") {
  const TemporaryFolder folder;
  const auto try_location = [&](const std::string& location, const std::string& offset, const std::string& length) {
    onnx::ModelProto model = small_file();
    onnx::TensorProto& weight = *model.mutable_graph()->mutable_initializer(0);
    const std::string values = weight.raw_data();
    weight.clear_raw_data();
    weight.set_data_location(onnx::TensorProto::EXTERNAL);
    for (const auto& [key, value] :
         std::map<std::string, std::string>{{"location", location}, {"offset", offset}, {"length", length}}) {
      auto& entry = *weight.add_external_data();
      entry.set_key(key), entry.set_value(value);
    }
    write_text(folder / "net.data", "12345678" + values);
    write_text(folder / "net.onnx", model.SerializeAsString());
    try {
      const OnnxImport imported = read_onnx(folder / "net.onnx");
      CHECK(imported.network.weights.at(0).second.data<float>()[5] == 0.5f);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::data);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(try_location("net.data", "8", "48") == "accepted");
  CHECK(contains(try_location("../net.data", "8", "48"), "not a name in the folder of the model"));
  CHECK(contains(try_location("/etc/passwd", "0", "48"), "not a name in the folder of the model"));
  CHECK(contains(try_location("absent", "0", "48"), "cannot be used"));
  CHECK(contains(try_location("net.data", "9", "48"), "does not have its 48 bytes"));
  CHECK(contains(try_location("net.data", "18446744073709551615", "48"), "does not have its 48 bytes"));
  CHECK(contains(try_location("net.data", "8", "40"), "does not have its 48 bytes"));
  CHECK(contains(try_location("net.data", "x", "48"), "not a number"));
}

TEST_CASE("damaged files are refused") {
  const std::string whole = small_file().SerializeAsString();
  const auto refused = [](const std::string& bytes) {
    try {
      read(bytes);
    } catch (const Error& error) {
      return error.code() == ErrorCode::data;
    }
    return false;
  };
  CHECK(refused(""));
  CHECK(refused("PK\x03\x04 this is a zip file"));
  for (std::size_t length = 1; length < whole.size(); ++length) {
    INFO(length);
    CHECK(refused(whole.substr(0, length)));
  }
  const std::string folder = DP_ONNX_TESTS;
  CHECK_THROWS_AS(read_onnx(folder), Error);
  CHECK_THROWS_AS(read_onnx(folder + "/absent.onnx"), Error);
}
