// The structure of the ONNX files that dp writes, read back by protobuf.
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "dp/dp.h"
#include "support/catch.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace {

using namespace dp;
using namespace dp::test;

using Node = ModelBuilder::Node;
using Names = std::vector<std::string>;

onnx::ModelProto parsed(const std::string& path) {
  onnx::ModelProto model;
  REQUIRE(model.ParseFromString(read_text(path)));
  return model;
}

onnx::ModelProto exported(const TrainedModel& network, const OnnxExport& options = {}) {
  const TemporaryFolder folder;
  write_onnx(folder / "net.onnx", network, options);
  return parsed(folder / "net.onnx");
}

// Weights of no particular values.
TrainedModel with_weights(const Model& model) {
  TrainedModel network{model, {}};
  const auto add = [&](const std::string& name, const Shape& shape, DType type) {
    network.weights.emplace_back(name, Tensor(shape, type));
    if (type != DType::f32) return;
    float value = 0.125f;
    for (float& element : network.weights.back().second.span<float>()) element = value += 0.37f;
  };
  for (const ParameterSpec& parameter : model.parameters()) add(parameter.name, parameter.shape, DType::f32);
  for (const BufferSpec& buffer : model.buffers()) add(buffer.name, buffer.shape, buffer.type);
  return network;
}

TrainedModel conv_net() {
  ModelBuilder m("net", Shape{3, 8, 6});
  auto x = m.conv2d("stem.conv", m.input(), {.out_channels = 4, .stride = {2, 1}, .padding = 1, .bias = false});
  x = m.relu(m.batch_norm2d("stem.bn", x));
  x = m.dropout("drop", m.flatten(m.global_avg_pool2d(x)), 0.5f);
  return with_weights(m.build(m.linear("fc", x, {.out_features = 5})));
}

const onnx::TensorProto& initializer(const onnx::ModelProto& model, const std::string& name) {
  for (const auto& tensor : model.graph().initializer())
    if (tensor.name() == name) return tensor;
  FAIL("no initializer " << name);
  return model.graph().initializer(0);
}
std::vector<float> floats(const onnx::TensorProto& tensor) {
  REQUIRE(tensor.data_type() == onnx::TensorProto::FLOAT);
  std::vector<float> values(tensor.raw_data().size() / sizeof(float));
  std::memcpy(values.data(), tensor.raw_data().data(), tensor.raw_data().size());
  return values;
}
Tensor& weight(TrainedModel& network, const std::string& name) {
  for (auto& [key, tensor] : network.weights)
    if (key == name) return tensor;
  FAIL("no weight " << name);
  return network.weights.front().second;
}

Names node_names(const onnx::ModelProto& model) {
  Names names;
  for (const auto& node : model.graph().node()) names.push_back(node.name());
  return names;
}
// The operators, without those whose node only prepares an operand: "layer1/Transpose".
Names operators(const onnx::ModelProto& model) {
  Names names;
  for (const auto& node : model.graph().node()) names.push_back(node.op_type());
  return names;
}

const onnx::AttributeProto& attribute(const onnx::NodeProto& node, const std::string& name) {
  for (const auto& one : node.attribute())
    if (one.name() == name) return one;
  FAIL("no attribute " << name);
  return node.attribute(0);
}
std::vector<std::int64_t> ints(const onnx::NodeProto& node, const std::string& name) {
  const auto& values = attribute(node, name).ints();
  return {values.begin(), values.end()};
}

}  // namespace

TEST_CASE("an exported network has the names of layers and weights, and one image as its input") {
  const TrainedModel network = conv_net();
  const onnx::ModelProto model = exported(network);
  CHECK(node_names(model) == Names{"stem.conv", "stem.bn", "layer3", "layer4", "layer5", "fc"});
  CHECK(operators(model) == Names{"Conv", "BatchNormalization", "Relu", "GlobalAveragePool", "Flatten", "Gemm"});
  CHECK(model.opset_import_size() == 1);
  CHECK(model.opset_import(0).version() == 17);
  CHECK(model.producer_name() == "dp");
  CHECK_FALSE(model.producer_version().empty());
  CHECK(model.graph().name() == "net");
  for (const auto& [name, tensor] : network.weights) {
    if (name.ends_with("num_batches_tracked")) continue;
    INFO(name);
    const onnx::TensorProto& stored = initializer(model, name);
    const auto values = tensor.span<float>();
    CHECK(floats(stored) == std::vector<float>(values.begin(), values.end()));
    CHECK(std::vector<std::int64_t>(stored.dims().begin(), stored.dims().end()) ==
          std::vector<std::int64_t>(tensor.shape().dims().begin(), tensor.shape().dims().end()));
  }
  const auto sizes = [](const onnx::ValueInfoProto& value) {
    std::vector<std::int64_t> found;
    for (const auto& dim : value.type().tensor_type().shape().dim()) found.push_back(dim.dim_value());
    return found;
  };
  REQUIRE(model.graph().input_size() == 1);
  CHECK(model.graph().input(0).name() == "input");
  CHECK(sizes(model.graph().input(0)) == std::vector<std::int64_t>{1, 3, 8, 6});
  CHECK(model.graph().output(0).name() == "output");
  CHECK(sizes(model.graph().output(0)) == std::vector<std::int64_t>{1, 5});
  const onnx::NodeProto& conv = model.graph().node(0);
  CHECK(ints(conv, "strides") == std::vector<std::int64_t>{2, 1});
  CHECK(ints(conv, "pads") == std::vector<std::int64_t>{1, 1, 1, 1});
  const onnx::ModelProto dynamic = exported(network, {.dynamic_batch = true});
  for (const auto* const value : {&dynamic.graph().input(0), &dynamic.graph().output(0)})
    CHECK(value->type().tensor_type().shape().dim(0).dim_param() == "batch");
}

TEST_CASE("an exported file has class names and preprocessing as metadata") {
  TrainedModel network = conv_net();
  const auto metadata = [](const onnx::ModelProto& model) {
    std::map<std::string, std::string> found;
    for (const auto& entry : model.metadata_props()) found[entry.key()] = entry.value();
    return found;
  };
  CHECK(metadata(exported(network)) == std::map<std::string, std::string>{{"dp.input_size", "[3,8,6]"}});
  network.classes = {"cat", "dög", "a \"b\"", "d", "e"};
  network.preprocessing = Preprocessing{{{0.5f, 0.25f, 0}, {1, 2, 0.5f}}, Resizing{Interpolation::bicubic, 0.95}};
  CHECK(metadata(exported(network)) ==
        std::map<std::string, std::string>{
            {"dp.input_size", "[3,8,6]"},
            {"dp.classes", R"(["cat","dög","a \"b\"","d","e"])"},
            {"dp.preprocessing",
             R"({"mean":[0.5,0.25,0.0],"std":[1.0,2.0,0.5],"interpolation":"bicubic","crop_pct":0.95})"}});
}

TEST_CASE("each layer is written as the operators that the vocabulary lists") {
  const std::vector<std::pair<std::function<Node(ModelBuilder&, Node)>, Names>> layers{
      {[](ModelBuilder& m, Node x) { return m.conv2d("a", x, {.out_channels = 2}); }, {"Conv"}},
      {[](ModelBuilder& m, Node x) { return m.conv_transpose2d("a", x, {.out_channels = 2}); }, {"ConvTranspose"}},
      {[](ModelBuilder& m, Node x) { return m.pointwise_linear("a", x, {.out_features = 2}); }, {"Conv"}},
      {[](ModelBuilder& m, Node x) { return m.scale("a", x); }, {"Mul"}},
      {[](ModelBuilder& m, Node x) { return m.batch_norm2d("a", x); }, {"BatchNormalization"}},
      {[](ModelBuilder& m, Node x) { return m.batch_norm2d("a", x, {.track_running_stats = false}); },
       {"ReduceMean", "Sub", "Mul", "ReduceMean", "Add", "Sqrt", "Div", "Mul", "Add"}},
      {[](ModelBuilder& m, Node x) { return m.group_norm("a", x, {.groups = 2}); },
       {"Reshape", "InstanceNormalization", "Reshape", "Mul", "Add"}},
      {[](ModelBuilder& m, Node x) { return m.instance_norm2d("a", x); }, {"InstanceNormalization"}},
      {[](ModelBuilder& m, Node x) { return m.layer_norm("a", x); }, {"Transpose", "LayerNormalization", "Transpose"}},
      {[](ModelBuilder& m, Node x) { return m.add(m.relu(x), x); }, {"Relu", "Add"}},
      {[](ModelBuilder& m, Node x) { return m.multiply(x, m.global_avg_pool2d(x)); }, {"GlobalAveragePool", "Mul"}},
      {[](ModelBuilder& m, Node x) {
         return m.concat({x, m.slice(x, 1, 2)});
       },
       {"Slice", "Concat"}},
      {[](ModelBuilder& m, Node x) { return m.channel_shuffle(x, 2); }, {"Reshape", "Transpose", "Reshape"}},
      {[](ModelBuilder& m, Node x) { return m.linear("a", m.flatten(x), {.out_features = 2}); }, {"Flatten", "Gemm"}},
      {[](ModelBuilder& m, Node x) { return m.prelu("a", x); }, {"PRelu"}},
      {[](ModelBuilder& m, Node x) { return m.softmax(x); }, {"Softmax"}},
      {[](ModelBuilder& m, Node x) { return m.max_pool2d(x); }, {"MaxPool"}},
      {[](ModelBuilder& m, Node x) {
         return m.max_pool2d(x, {.kernel = 2, .stride = 4, .dilation = 5, .ceil_mode = true});
       },
       {"Pad", "MaxPool"}},
      {[](ModelBuilder& m, Node x) { return m.avg_pool2d(x); }, {"AveragePool"}},
      {[](ModelBuilder& m, Node x) {
         return m.adaptive_avg_pool2d(x, {4, 3});
       },
       {"AveragePool"}},
      {[](ModelBuilder& m, Node x) {
         return m.adaptive_avg_pool2d(x, {3, 3});
       },
       {"MatMul", "MatMul"}},
      {[](ModelBuilder& m, Node x) { return m.upsample(x, {.scale_factor = 2}); }, {"Resize"}},
      {[](ModelBuilder& m, Node x) {
         return m.zero_pad2d(x, {1, 1, 0, 2});
       },
       {"Pad"}},
      {[](ModelBuilder& m, Node x) {
         return m.zero_pad2d(x, {1, -1, 0, 2});
       },
       {"Pad", "Slice"}},
      {[](ModelBuilder& m, Node x) { return m.relu(m.dropout("a", x, 0.5f)); }, {"Relu"}},
      {[](ModelBuilder& m, Node x) { return m.dropout("a", m.relu(x), 0.5f); }, {"Relu", "Identity"}},
      {[](ModelBuilder& m, Node x) {
         return m.reshape(x, {2, 16, 6});
       },
       {"Reshape"}},
      {[](ModelBuilder& m, Node x) { return m.activation(x, Relu6{}); }, {"Clip"}},
      {[](ModelBuilder& m, Node x) { return m.activation(x, LeakyRelu{}); }, {"LeakyRelu"}},
      {[](ModelBuilder& m, Node x) { return m.activation(x, Elu{}); }, {"Elu"}},
      {[](ModelBuilder& m, Node x) { return m.activation(x, Sigmoid{}); }, {"Sigmoid"}},
      {[](ModelBuilder& m, Node x) { return m.activation(x, HardSigmoid{}); }, {"HardSigmoid"}},
      {[](ModelBuilder& m, Node x) { return m.activation(x, Tanh{}); }, {"Tanh"}},
      {[](ModelBuilder& m, Node x) { return m.activation(x, Silu{}); }, {"Sigmoid", "Mul"}},
      {[](ModelBuilder& m, Node x) { return m.activation(x, HardSwish{}); }, {"HardSwish"}},
      {[](ModelBuilder& m, Node x) { return m.activation(x, Gelu{}); }, {"Div", "Erf", "Add", "Mul", "Mul"}},
      {[](ModelBuilder& m, Node x) { return m.activation(x, GeluTanh{}); },
       {"Mul", "Mul", "Mul", "Add", "Mul", "Tanh", "Mul", "Add", "Mul"}},
      {[](ModelBuilder& m, Node x) { return m.activation(x, Times{2}); }, {"Mul"}},
  };
  std::set<std::size_t> kinds;
  for (const auto& [append, expected] : layers) {
    ModelBuilder m("layer", Shape{4, 8, 6});
    const Model model = m.build(append(m, m.input()));
    const onnx::ModelProto written = exported(with_weights(model));
    Names found = operators(written);
    INFO(found.back());
    std::ranges::sort(found);
    Names sorted = expected;
    std::ranges::sort(sorted);
    CHECK(found == sorted);
    const Names names = node_names(written);
    CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
    for (const Layer& layer : model.layers()) kinds.insert(layer.kind.index());
  }
  CHECK(kinds.size() == std::variant_size_v<LayerKind>);
}

TEST_CASE("folded batch normalisations are gone, and the convolution has their factors in float64") {
  ModelBuilder m("net", Shape{2, 5, 5});
  auto x = m.batch_norm2d("bn", m.conv2d("conv", m.input(), {.out_channels = 3}), {.eps = 1e-3});
  TrainedModel network = with_weights(m.build(m.flatten(m.relu(x))));
  for (const char* name : {"bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"})
    for (std::int64_t c = 0; c < 3; ++c)
      weight(network, name).data<float>()[c] =
          0.3f + 0.7f * static_cast<float>(c) + 0.01f * static_cast<float>(name[3]);
  const onnx::ModelProto model = exported(network, {.fold_batch_norm = true});
  CHECK(operators(model) == Names{"Conv", "Relu", "Flatten"});
  CHECK(model.graph().initializer_size() == 2);
  const std::vector<float> weights = floats(initializer(model, "conv.weight")),
                           biases = floats(initializer(model, "conv.bias"));
  const auto value = [&](const char* name, std::int64_t i) { return value_at(weight(network, name), i); };
  for (std::int64_t c = 0; c < 3; ++c) {
    const double factor = value("bn.weight", c) / std::sqrt(value("bn.running_var", c) + 1e-3);
    const double bias = value("bn.bias", c) + (value("conv.bias", c) - value("bn.running_mean", c)) * factor;
    CHECK(biases[static_cast<std::size_t>(c)] == static_cast<float>(bias));
    for (std::int64_t i = c * 18; i < (c + 1) * 18; ++i)
      CHECK(weights[static_cast<std::size_t>(i)] == static_cast<float>(value("conv.weight", i) * factor));
  }
}

TEST_CASE("weights that do not fit the network, and too many of them, are refused before anything is written") {
  const TemporaryFolder folder;
  const std::string path = folder / "net.onnx";
  write_text(path, "old");
  const auto refused = [&](const TrainedModel& network, const std::string& why) {
    try {
      write_onnx(path, network);
      FAIL("not refused");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::usage);
      CHECK_THAT(error.what(), Catch::Contains(why));
    }
    CHECK(read_text(path) == "old");
  };
  TrainedModel network = conv_net();
  std::erase_if(network.weights, [](const auto& entry) { return entry.first == "fc.bias"; });
  refused(network, "the weights lack the tensor 'fc.bias' of the model");
  network.weights.emplace_back("fc.bias", Tensor(Shape{6}));
  refused(network, "the tensor 'fc.bias' has the shape (6,), but the model has (5,)");

  // A tensor of 2 GiB without memory, because it is never read.
  struct Unread final : Storage {
    void* data() override { return this; }
    std::size_t bytes() const override { return std::size_t{2} << 30; }
    Device device() const override { return {DeviceKind::cpu, 0}; }
    bool host_accessible() const override { return true; }
    void read(void*, const void*, std::size_t) const override {}
  };
  constexpr std::int64_t kSide = 1 << 15;
  ModelBuilder m("large", Shape{kSide / 2});
  const Model large = m.build(m.linear("fc", m.input(), {.out_features = kSide, .bias = false}));
  refused({large, {{"fc.weight", Tensor(Shape{kSide, kSide / 2}, DType::f32, std::make_shared<Unread>())}}},
          "at most 2 GiB");
}

TEST_CASE("an ONNX file that cannot be written is an I/O error") {
  const TemporaryFolder folder;
  try {
    write_onnx(folder / "missing/net.onnx", conv_net());
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::io);
    CHECK_THAT(error.what(), Catch::Contains("missing"));
  }
}
