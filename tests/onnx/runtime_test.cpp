// ONNX files that dp writes give dp's predictions in onnxruntime. Skipped if Python has no onnx or onnxruntime.
#include <functional>
#include <utility>

#include "engine/random_graphs/random_graph.h"
#include "onnx/onnx_runtime.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;

constexpr double kTolerance = 1e-5;  // of the largest output

using Node = ModelBuilder::Node;

// The predictions of networks, and the files from which onnxruntime makes them.
class Comparison {
 public:
  // With and without folded batch normalisations, one image at a time and several.
  void add(const std::string& name, DataParallel& net, const Tensor& images) {
    const TrainedModel network{net.model(), net.weights()};
    const Tensor predictions = net.predict(images).clone();
    for (const bool fold : {false, true})
      for (const bool dynamic : {false, true}) {
        const std::string file = name + (fold ? "-folded" : "") + (dynamic ? "-batch" : "");
        write_onnx(folder_ / (file + ".onnx"), network, {.fold_batch_norm = fold, .dynamic_batch = dynamic});
        write_safetensors(folder_ / (file + ".images"), {{"images", images}});
        expected_.emplace_back(file, predictions);
      }
  }
  void add(const std::string& name, const Model& model, std::int64_t rows, std::uint64_t seed) {
    DataParallel net(model, on_cpus(1));
    net.set_weights(varied_weights(net, seed));
    add(name, net, random_batch(model, rows, seed).images);
  }

  void check() {
    REQUIRE(run_onnx(folder_) == 0);
    for (const auto& [file, predictions] : expected_) {
      const double error = output_error(read_safetensors(folder_ / (file + ".outputs")).at(0).second, predictions);
      INFO(file);
      CHECK(error <= kTolerance);
    }
  }

 private:
  TemporaryFolder folder_;
  NamedTensors expected_;
};

// The networks of the registry with so many parameters, after two steps.
void compare_networks(std::int64_t from, std::int64_t to) {
  if (!has_onnxruntime()) DP_SKIP("no Python with onnx and onnxruntime");
  int compared = 0;
  for (const models::Entry& entry : models::registry()) {
    const bool small = entry.name == "mlp" || entry.name == "mnist_convnet";
    const Model model = entry.make(small ? Shape{1, 28, 28} : Shape{3, 64, 64}, 10);
    if (model.parameter_count() < from || model.parameter_count() >= to) continue;
    DataParallel net(model, on_cpus(1));
    for (std::uint64_t step = 0; step < 2; ++step)
      net.train_step(random_batch(model, 4, step), Sgd{.lr = 0.01f, .momentum = 0.9f});
    Comparison comparison;
    comparison.add(entry.name, net, random_batch(model, 3, 9).images);
    comparison.check();
    ++compared;
  }
  CHECK(compared >= 4);
}

struct LayerCase {
  const char* name;
  std::function<Node(ModelBuilder&, Node)> append;
};

// Layers and options that random graphs do not have, and each function.
std::vector<LayerCase> layer_cases() {
  std::vector<LayerCase> cases{
      {"batch_statistics",
       [](ModelBuilder& m, Node x) { return m.batch_norm2d("bn", x, {.track_running_stats = false}); }},
      {"batch_statistics_alone",
       [](ModelBuilder& m, Node x) {
         return m.batch_norm2d("bn", x, {.affine = false, .track_running_stats = false});
       }},
      {"no_affine",
       [](ModelBuilder& m, Node x) {
         return m.batch_norm2d("bn", m.conv2d("conv", x, {.out_channels = 4}), {.affine = false});
       }},
      {"two_readers",
       [](ModelBuilder& m, Node x) {
         const Node conv = m.conv2d("conv", x, {.out_channels = 6, .padding = 1});
         return m.add(m.batch_norm2d("bn", conv), conv);
       }},
      {"transposed_norm",
       [](ModelBuilder& m, Node x) {
         const Node up = m.conv_transpose2d(
             "up", x,
             {.out_channels = 8, .stride = 2, .padding = {1, 0}, .output_padding = 1, .groups = 2, .dilation = {1, 2}});
         return m.batch_norm2d("bn", up);
       }},
      {"pointwise_norm",
       [](ModelBuilder& m, Node x) { return m.batch_norm2d("bn", m.pointwise_linear("fc", x, {.out_features = 5})); }},
      {"scale_norm", [](ModelBuilder& m, Node x) { return m.batch_norm2d("bn", m.scale("factor", x, 1.5f)); }},
      {"even_same",
       [](ModelBuilder& m, Node x) {
         return m.conv2d("conv", x, {.out_channels = 3, .kernel = {2, 4}, .padding = kSamePadding});
       }},
      {"instance_norm", [](ModelBuilder& m, Node x) { return m.instance_norm2d("norm", x); }},
      {"instance_norm_affine", [](ModelBuilder& m, Node x) { return m.instance_norm2d("norm", x, {.affine = true}); }},
      {"group_norm", [](ModelBuilder& m, Node x) { return m.group_norm("norm", x, {.groups = 3}); }},
      {"ceil_dropped",
       [](ModelBuilder& m, Node x) {
         return m.max_pool2d(x, {.kernel = 3, .stride = 3, .padding = 1, .ceil_mode = true});
       }},
      {"ceil_kept",
       [](ModelBuilder& m, Node x) { return m.max_pool2d(x, {.kernel = 3, .stride = 2, .ceil_mode = true}); }},
      {"ceil_wide",
       [](ModelBuilder& m, Node x) {
         return m.max_pool2d(x, {.kernel = {2, 3}, .stride = HW(3, 4), .padding = {1, 0}, .ceil_mode = true});
       }},
      {"ceil_dilated",
       [](ModelBuilder& m, Node x) {
         return m.max_pool2d(x, {.kernel = 2, .stride = 4, .dilation = {4, 5}, .ceil_mode = true});
       }},
      {"pool_dilated",
       [](ModelBuilder& m, Node x) { return m.max_pool2d(x, {.kernel = 2, .padding = 1, .dilation = 2}); }},
      {"adaptive_same",
       [](ModelBuilder& m, Node x) {
         return m.adaptive_avg_pool2d(x, {7, 9});
       }},
      {"adaptive_more",
       [](ModelBuilder& m, Node x) {
         return m.adaptive_avg_pool2d(x, {11, 4});
       }},
      {"crop",
       [](ModelBuilder& m, Node x) {
         return m.zero_pad2d(x, {-2, 3, 4, -5});
       }},
      {"crop_all",
       [](ModelBuilder& m, Node x) {
         return m.zero_pad2d(x, {-9, 3, -8, 4});
       }},
      {"channels_shuffled", [](ModelBuilder& m, Node x) { return m.channel_shuffle(x, 2); }},
      {"dropouts",
       [](ModelBuilder& m, Node x) {
         return m.dropout("last", m.relu(m.add(m.dropout("first", x, 0.1f), m.relu(x))), 0.5f);
       }},
      {"same_names", [](ModelBuilder& m, Node x) {
         return m.scale("layer2_output", m.scale("layer2", m.scale("output", m.relu(x), 2), 3), 4);
       }}};
  const auto upsampled = [&](const char* name, const Upsample& upsample) {
    cases.push_back({name, [upsample](ModelBuilder& m, Node x) { return m.upsample(x, upsample); }});
  };
  using enum Upsample::Mode;
  upsampled("nearest_scale", {.scale_factor = 2});
  upsampled("nearest_fraction", {.scale_factor = 1.7});
  upsampled("nearest_smaller", {.size = HW{5, 4}});
  upsampled("nearest_large", {.size = HW{93, 119}});
  upsampled("bilinear_scale", {.scale_factor = 1.7, .mode = bilinear});
  upsampled("bilinear_smaller", {.size = HW{3, 4}, .mode = bilinear});
  upsampled("bilinear_one", {.size = HW{1, 2}, .mode = bilinear});
  upsampled("bilinear_aligned", {.size = HW{11, 1}, .mode = bilinear, .align_corners = true});
  for (const Function& function :
       {Function(Relu6{}), Function(LeakyRelu{0.2f}), Function(Elu{0.7f}), Function(Sigmoid{}), Function(HardSigmoid{}),
        Function(Tanh{}), Function(Silu{}), Function(HardSwish{}), Function(Gelu{}), Function(GeluTanh{}),
        Function(Times{-2.5f})})
    cases.push_back({name_of(function), [function](ModelBuilder& m, Node x) {
                       return m.activation(m.activation(x, Times{3}), function);
                     }});
  return cases;
}

}  // namespace

TEST_CASE("onnxruntime agrees on layers with every option") {
  if (!has_onnxruntime()) DP_SKIP("no Python with onnx and onnxruntime");
  Comparison comparison;
  for (const LayerCase& layer : layer_cases()) {
    ModelBuilder m(layer.name, Shape{6, 7, 9});
    Node x = m.flatten(layer.append(m, m.scale("begin", m.input(), 1.25f)));  // a network has a parameter
    if (std::string(layer.name) == "dropouts") x = m.dropout("behind", x, 0.5f);
    INFO(layer.name);
    // Normalised by the statistics of the batch, images cannot be passed one at a time.
    comparison.add(layer.name, m.build(x), std::string(layer.name).starts_with("batch_statistics") ? 1 : 3, 3);
  }
  comparison.check();
}

TEST_CASE("onnxruntime agrees on a network without images") {
  if (!has_onnxruntime()) DP_SKIP("no Python with onnx and onnxruntime");
  ModelBuilder m("rows", Shape{12});
  auto x = m.prelu("prelu", m.linear("fc1", m.input(), {.out_features = 10, .bias = false}), {.num_parameters = 10});
  x = m.reshape(m.concat({m.slice(x, 2, 6), x}), {4, 2, 2});
  Comparison comparison;
  comparison.add("rows", m.build(m.softmax(m.linear("fc2", m.flatten(m.softmax(x)), {.out_features = 4}))), 3, 1);
  comparison.check();
}

TEST_CASE("onnxruntime agrees on random graphs") {
  if (!has_onnxruntime()) DP_SKIP("no Python with onnx and onnxruntime");
  Comparison comparison;
  for (std::uint64_t seed = 0; seed < 60; ++seed)
    comparison.add("graph" + std::to_string(seed), random_graph(seed), 3, seed);
  comparison.check();
}

TEST_CASE("onnxruntime agrees on small networks of the registry") { compare_networks(0, 5'000'000); }

TEST_CASE("onnxruntime agrees on networks of the registry", "[networks]") { compare_networks(5'000'000, 30'000'000); }

TEST_CASE("onnxruntime agrees on large networks of the registry", "[large]") {
  compare_networks(30'000'000, std::int64_t{1} << 40);
}

TEST_CASE("onnxruntime agrees on networks that came in as ONNX") {
  if (!has_onnxruntime()) DP_SKIP("no Python with onnx and onnxruntime");
  const TemporaryFolder folder;
  Comparison comparison;
  for (const char* name : {"mobilenet_v3_small", "shufflenet_v2_x1_0"}) {
    DataParallel net(models::find(name).make({3, 64, 64}, 10), on_cpus(1));
    net.set_weights(varied_weights(net, 5));
    for (const bool fold : {false, true}) {
      write_onnx(folder / "net.onnx", {net.model(), net.weights()}, {.fold_batch_norm = fold});
      const OnnxImport imported = read_onnx(folder / "net.onnx");
      DataParallel again(imported.network.model, on_cpus(1));
      again.set_weights(imported.network.weights);
      const Tensor images = random_batch(net.model(), 3, 5).images;
      CHECK(output_error(again.predict(images), net.predict(images)) <= kTolerance);
      comparison.add(std::string(name) + (fold ? "-from-folded" : ""), again, images);
    }
  }
  comparison.check();
}
