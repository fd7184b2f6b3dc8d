// Registry of the models available on the command line.
#include <dp/error.h>
#include <dp/models.h>

namespace dp::models {
namespace {

Model make_mnist_convnet(const Shape& input, std::int64_t classes) {
  if (input != Shape{1, 28, 28})
    throw Error(ErrorCode::usage, "model 'mnist_convnet' requires images of (1, 28, 28), not " + to_string(input) +
                                      "; choose another model or data set");
  return mnist_convnet({.classes = classes});
}
Model make_resnet18(const Shape& input, std::int64_t classes) { return resnet18({.classes = classes, .input = input}); }
Model make_mlp(const Shape& input, std::int64_t classes) { return mlp({.input = input, .classes = classes}); }

}  // namespace

const std::vector<Entry>& registry() {
  static const std::vector<Entry> entries{
      {"mnist_convnet", "conv 32-64, fc 128: PyTorch's MNIST example, 1.2 M parameters", {}, make_mnist_convnet},
      {"resnet18",
       "residual, 18 layers, torchvision's names: 11.2 M parameters; 3x3 stem for images below 64 pixels",
       {.dataset = "cifar10",
        .lr = 0.1f,
        .weight_decay = 5e-4f,
        .schedule = ScheduleKind::multistep,
        .milestones = {0.5, 0.75}},
       make_resnet18},
      {"mlp", "one hidden layer of 128 units; the smallest example of a model", {}, make_mlp},
  };
  return entries;
}

const Entry& find(std::string_view name) {
  std::string names;
  for (const Entry& entry : registry()) {
    if (entry.name == name) return entry;
    names += (names.empty() ? "" : ", ") + entry.name;
  }
  throw Error(ErrorCode::usage, "model '" + std::string(name) + "' does not exist; choose one of " + names);
}

}  // namespace dp::models
