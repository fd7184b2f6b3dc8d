// Registry of the models available on the command line.
#include <dp/error.h>
#include <dp/models.h>
#include <dp/named_entries.h>
#include <dp/onnx.h>
#include <functional>
#include <map>
#include <memory>
#include <utility>

namespace dp::models {
namespace {

Model make_mnist_convnet(const Shape& input, std::int64_t classes) {
  if (input != Shape{1, 28, 28})
    throw Error(ErrorCode::usage, "model 'mnist_convnet' requires images of (1, 28, 28), not " + to_string(input) +
                                      "; choose another model or data set");
  return mnist_convnet({.classes = classes});
}
template <Model (*kMake)(const ResnetOptions&)>
Model make_resnet(const Shape& input, std::int64_t classes) {
  return kMake({.classes = classes, .input = input});
}
template <Model (*kMake)(const ImagenetOptions&)>
Model make_imagenet(const Shape& input, std::int64_t classes) {
  return kMake({.classes = classes, .input = input});
}
template <Model (*kMake)(const VggOptions&)>
Model make_vgg(const Shape& input, std::int64_t classes) {
  return kMake({.classes = classes, .input = input});
}
Model make_cifar_speed(const Shape& input, std::int64_t classes) {
  return cifar_speed({.classes = classes, .input = input});
}
Model make_mlp(const Shape& input, std::int64_t classes) { return mlp({.input = input, .classes = classes}); }

// The recipes of torchvision's references/classification: eight GPUs with 32 images each.

// A tenth of the rate after every 30 of 90 epochs.
Recipe imagenet_recipe() {
  return {.dataset = "imagefolder",
          .lr = 0.1f,
          .weight_decay = 1e-4f,
          .schedule = ScheduleKind::multistep,
          .milestones = {1.0 / 3, 2.0 / 3},
          .batch_size = 256};
}

// A tenth of the rate after every 30 of 100 epochs.
Recipe resnext_recipe() {
  Recipe recipe = imagenet_recipe();
  recipe.milestones = {0.3, 0.6, 0.9};
  return recipe;
}

// torchvision's weights were trained with a cosine schedule and warm restarts, which a Recipe does not have
// (https://github.com/pytorch/vision/pull/912).
Recipe wide_resnet_recipe() {
  Recipe recipe = imagenet_recipe();
  recipe.schedule = ScheduleKind::cosine;
  recipe.milestones.clear();
  return recipe;
}

// torchvision multiplies the rate by 0.98 after each of 300 epochs, which leaves 0.2 % of it. A Recipe has no such
// factor. A cosine ends near zero as well, after any number of epochs.
Recipe mobilenet_recipe() { return {.dataset = "imagefolder", .lr = 0.045f, .weight_decay = 4e-5f, .batch_size = 256}; }

// Also of EfficientNet. torchvision trained MobileNetV3 with RMSprop for 600 epochs and heavier augmentation, as
// EfficientNet's paper; a Recipe has SGD. The decay is theirs.
Recipe mobilenet_v3_recipe() {
  Recipe recipe = mobilenet_recipe();
  recipe.weight_decay = 1e-5f;
  return recipe;
}

// torchvision trained with batches of 1024 and four times this rate, for 100 epochs. The first 5 were a warm-up.
Recipe regnet_recipe() { return {.dataset = "imagefolder", .lr = 0.2f, .weight_decay = 5e-5f, .batch_size = 256}; }

// torchvision trained the wider networks of this family with batches of 1024, four times this rate, and a warm-up.
Recipe shufflenet_recipe() {
  return {.dataset = "imagefolder", .lr = 0.125f, .weight_decay = 2e-5f, .batch_size = 256};
}

// torchvision trained for 600 epochs with batches of 1024, four times this rate, a warm-up, and more augmentation.
Recipe convnext_recipe() {
  return {.dataset = "imagefolder", .adamw = true, .lr = 2.5e-4f, .weight_decay = 0.05f, .batch_size = 256};
}

// The paper's: as the ResNets, with Nesterov's momentum.
Recipe densenet_recipe() {
  Recipe recipe = imagenet_recipe();
  recipe.nesterov = true;
  return recipe;
}

// torchvision's references train VGG with a tenth of the ResNets' rate.
Recipe vgg_recipe() {
  Recipe recipe = imagenet_recipe();
  recipe.lr = 0.01f;
  return recipe;
}

// torchvision took the paper's weights and has no recipe. The rate and the schedule are those of later networks with
// batch normalisation.
Recipe googlenet_recipe() { return {.dataset = "imagefolder", .lr = 0.045f, .weight_decay = 1e-4f, .batch_size = 256}; }

// airbench94 minimises the sum of the losses of 1024 images, with the rate 11.5 / (1024 * (1 + 1 / 0.15)). This is the
// same rate for the mean loss of 128 images. Its weights of normalisation keep their initial value of 1. Its biases
// have little decay; a Recipe has none for them.
Recipe cifar_speed_recipe() {
  return {.dataset = "cifar10",
          .lr = 0.19f,
          .momentum = 0.85f,
          .nesterov = true,
          .weight_decay = 1.3e-3f,
          .schedule = ScheduleKind::polynomial,
          .epochs = 10,
          .warmup = 0.23,
          .label_smoothing = 0.2f,
          .freeze = {"whiten.weight", "layers.?.norm?.weight"},
          .lr_factors = {"layers.?.norm?.bias=64"},
          .no_decay_norm_bias = true,
          .augmentation = {.padding = 2, .flip = Flip::alternating}};
}

std::vector<Entry>& entries() {
  static std::vector<Entry> all{
      {"mnist_convnet", "conv 32-64, fc 128: PyTorch's MNIST example, 1.2 M parameters", {}, make_mnist_convnet},
      {"resnet18",
       "residual, 18 layers, torchvision's names: 11.2 M parameters; 3x3 stem for images below 64 pixels",
       {.dataset = "cifar10",
        .lr = 0.1f,
        .weight_decay = 5e-4f,
        .schedule = ScheduleKind::multistep,
        .milestones = {0.5, 0.75}},
       make_resnet<resnet18>},
      {"resnet34", "residual, 34 layers: 21.8 M parameters", imagenet_recipe(), make_resnet<resnet34>},
      {"resnet50", "residual, 50 layers, bottlenecks: 25.6 M parameters", imagenet_recipe(), make_resnet<resnet50>},
      {"resnet101", "residual, 101 layers, bottlenecks: 44.5 M parameters", imagenet_recipe(), make_resnet<resnet101>},
      {"resnet152", "residual, 152 layers, bottlenecks: 60.2 M parameters", imagenet_recipe(), make_resnet<resnet152>},
      {"resnext50_32x4d", "resnet50 with 32 groups of 4 channels: 25.0 M parameters", resnext_recipe(),
       make_resnet<resnext50_32x4d>},
      {"wide_resnet50_2", "resnet50 with bottlenecks of twice the width: 68.9 M parameters", wide_resnet_recipe(),
       make_resnet<wide_resnet50_2>},
      {"mobilenet_v2", "inverted residuals of depthwise convolutions: 3.5 M parameters", mobilenet_recipe(),
       make_imagenet<mobilenet_v2>},
      {"mobilenet_v3_small", "mobilenet with squeeze-and-excitation: 2.5 M parameters", mobilenet_v3_recipe(),
       make_imagenet<mobilenet_v3_small>},
      {"mobilenet_v3_large", "the same, deeper and wider: 5.5 M parameters", mobilenet_v3_recipe(),
       make_imagenet<mobilenet_v3_large>},
      {"efficientnet_b0", "mobilenet with squeeze-and-excitation, stochastic depth: 5.3 M parameters",
       mobilenet_v3_recipe(), make_imagenet<efficientnet_b0>},
      {"regnet_y_400mf", "bottlenecks in groups, with squeeze-and-excitation: 4.3 M parameters", regnet_recipe(),
       make_imagenet<regnet_y_400mf>},
      {"shufflenet_v2_x1_0", "depthwise convolutions on half of the channels: 2.3 M parameters", shufflenet_recipe(),
       make_imagenet<shufflenet_v2_x1_0>},
      {"convnext_tiny", "depthwise 7x7 convolutions, layer normalisation, GELU: 28.6 M parameters", convnext_recipe(),
       make_imagenet<convnext_tiny>},
      {"densenet121", "layers that read all earlier ones of their block: 8.0 M parameters", densenet_recipe(),
       make_imagenet<densenet121>},
      {"googlenet", "inception blocks of four branches: 6.6 M parameters", googlenet_recipe(),
       make_imagenet<googlenet>},
      {"vgg11_bn", "8 convolutions of 3x3 and 3 linear layers: 132.9 M parameters", vgg_recipe(), make_vgg<vgg11_bn>},
      {"vgg13_bn", "the same with 10 convolutions: 133.1 M parameters", vgg_recipe(), make_vgg<vgg13_bn>},
      {"vgg16_bn", "the same with 13 convolutions: 138.4 M parameters", vgg_recipe(), make_vgg<vgg16_bn>},
      {"vgg19_bn", "the same with 16 convolutions: 143.7 M parameters", vgg_recipe(), make_vgg<vgg19_bn>},
      {"cifar_speed", "three stages of GELU and batch normalisation, for CIFAR-10: 2.0 M parameters",
       cifar_speed_recipe(), make_cifar_speed, cifar_speed_whitening},
      {"mlp", "one hidden layer of 128 units; the smallest example of a model", {}, make_mlp},
  };
  return all;
}

}  // namespace

const std::vector<Entry>& registry() { return entries(); }

namespace {

// Networks in ONNX files, by their paths.
std::map<std::string, Entry, std::less<>>& files() {
  static std::map<std::string, Entry, std::less<>> read;
  return read;
}

Entry entry_of(const std::string& path, OnnxImport imported) {
  const auto network = std::make_shared<const TrainedModel>(std::move(imported.network));
  Entry entry{path, "a network in an ONNX file", {.dataset = "imagefolder", .lr = 0.01f}, {}};
  entry.make = [=](const Shape& input, std::int64_t classes) {
    const Model& model = network->model;
    if (model.input() != input)
      throw Error(ErrorCode::usage, "--model '" + path + "' takes inputs of " + to_string(model.input()) +
                                        ", but those of the data set are " + to_string(input) +
                                        "; choose the same --image-size, or export the network with this size");
    if (model.output() != Shape{classes})
      throw Error(ErrorCode::usage,
                  "--model '" + path + "' has outputs of " + to_string(model.output()) + ", but the data set has " +
                      std::to_string(classes) + " classes; replace the last layer before the export, for example by " +
                      "model.fc = torch.nn.Linear(model.fc.in_features, " + std::to_string(classes) + ")");
    return model;
  };
  entry.first_weights = [=](const Dataset&) { return network->weights; };
  entry.notices = std::move(imported.notices);
  return entry;
}

}  // namespace

const Entry& find(std::string_view name) {
  if (!name.ends_with(".onnx")) return find_entry(entries(), name, "model");
  auto found = files().find(name);
  if (found == files().end()) {
    const std::string path(name);
    found = files().emplace(path, entry_of(path, read_onnx(path))).first;
  }
  return found->second;
}
void use_network(const std::string& onnx_path, TrainedModel network) {
  files().insert_or_assign(onnx_path, entry_of(onnx_path, {std::move(network), {}}));
}
void add(Entry entry) { add_entry(entries(), std::move(entry), "model"); }

}  // namespace dp::models
