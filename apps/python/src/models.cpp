// The networks of dp::models.
#include <dp/models.h>

#include "convert.h"

namespace dp_python {
namespace {

namespace models = dp::models;

template <typename Function>
void resnet(nb::module_& m, const char* name, Function function) {
  m.def(
      name,
      [function](std::int64_t classes, const dp::Shape& input, const std::string& stem, std::int64_t width) {
        return function({.classes = classes,
                         .input = input,
                         .stem = choose<models::ResnetOptions::Stem>("stem", stem, {"by_size", "imagenet", "cifar"}),
                         .width = width});
      },
      "classes"_a = 10, nb::kw_only(), "input"_a = dp::Shape{3, 32, 32}, "stem"_a = "by_size", "width"_a = 64,
      "torchvision's network of this name. stem: imagenet (7x7, stride 2, pool), cifar (3x3), or by_size.");
}

template <typename Function>
void imagenet(nb::module_& m, const char* name, Function function) {
  m.def(
      name,
      [function](std::int64_t classes, const dp::Shape& input) {
        return function({.classes = classes, .input = input});
      },
      "classes"_a = 1000, nb::kw_only(), "input"_a = dp::Shape{3, 224, 224}, "torchvision's network of this name.");
}

template <typename Function>
void vgg(nb::module_& m, const char* name, Function function) {
  m.def(
      name,
      [function](std::int64_t classes, const dp::Shape& input, std::int64_t hidden) {
        return function({.classes = classes, .input = input, .hidden = hidden});
      },
      "classes"_a = 1000, nb::kw_only(), "input"_a = dp::Shape{3, 224, 224}, "hidden"_a = 4096,
      "torchvision's network of this name. hidden: features of both hidden linear layers.");
}

void bind_model_class(nb::module_& m) {
  nb::class_<dp::Model>(m, "Model", "A network: named layers with shapes per sample. ModelBuilder makes one.")
      .def_prop_ro("name", &dp::Model::name, "Name of the network.")
      .def_prop_ro("input", &dp::Model::input, "Shape of a sample.")
      .def_prop_ro("output", &dp::Model::output, "Shape of the output for a sample.")
      .def_prop_ro(
          "layers",
          [](const dp::Model& self) {
            std::vector<std::pair<std::string, dp::Shape>> layers;
            for (const dp::Layer& layer : self.layers()) layers.emplace_back(layer.name, layer.output);
            return layers;
          },
          "Name and output shape of each layer, the input first.")
      .def_prop_ro(
          "parameters",
          [](const dp::Model& self) {
            nb::typed<nb::dict, nb::str, dp::Shape> shapes;
            for (const dp::ParameterSpec& each : self.parameters()) shapes[each.name.c_str()] = each.shape;
            return shapes;
          },
          "Shape of each parameter, by name.")
      .def_prop_ro("parameter_count", &dp::Model::parameter_count, "Number of trained values.")
      .def("__repr__", [](const dp::Model& self) {
        return nb::str("<dp.Model {}: {} to {}, {} parameters>")
            .format(self.name(), self.input(), self.output(), self.parameter_count());
      });
}

}  // namespace

void bind_models(nb::module_& m) {
  bind_model_class(m);
  resnet(m, "resnet18", [](const models::ResnetOptions& o) { return models::resnet18(o); });
  resnet(m, "resnet34", [](const models::ResnetOptions& o) { return models::resnet34(o); });
  resnet(m, "resnet50", [](const models::ResnetOptions& o) { return models::resnet50(o); });
  resnet(m, "resnet101", [](const models::ResnetOptions& o) { return models::resnet101(o); });
  resnet(m, "resnet152", [](const models::ResnetOptions& o) { return models::resnet152(o); });
  resnet(m, "resnext50_32x4d", [](const models::ResnetOptions& o) { return models::resnext50_32x4d(o); });
  resnet(m, "wide_resnet50_2", [](const models::ResnetOptions& o) { return models::wide_resnet50_2(o); });
  imagenet(m, "mobilenet_v2", [](const models::ImagenetOptions& o) { return models::mobilenet_v2(o); });
  imagenet(m, "mobilenet_v3_small", [](const models::ImagenetOptions& o) { return models::mobilenet_v3_small(o); });
  imagenet(m, "mobilenet_v3_large", [](const models::ImagenetOptions& o) { return models::mobilenet_v3_large(o); });
  imagenet(m, "efficientnet_b0", [](const models::ImagenetOptions& o) { return models::efficientnet_b0(o); });
  imagenet(m, "regnet_y_400mf", [](const models::ImagenetOptions& o) { return models::regnet_y_400mf(o); });
  imagenet(m, "shufflenet_v2_x1_0", [](const models::ImagenetOptions& o) { return models::shufflenet_v2_x1_0(o); });
  imagenet(m, "convnext_tiny", [](const models::ImagenetOptions& o) { return models::convnext_tiny(o); });
  imagenet(m, "densenet121", [](const models::ImagenetOptions& o) { return models::densenet121(o); });
  imagenet(m, "googlenet", [](const models::ImagenetOptions& o) { return models::googlenet(o); });
  vgg(m, "vgg11_bn", [](const models::VggOptions& o) { return models::vgg11_bn(o); });
  vgg(m, "vgg13_bn", [](const models::VggOptions& o) { return models::vgg13_bn(o); });
  vgg(m, "vgg16_bn", [](const models::VggOptions& o) { return models::vgg16_bn(o); });
  vgg(m, "vgg19_bn", [](const models::VggOptions& o) { return models::vgg19_bn(o); });
  m.def(
      "mnist_convnet",
      [](std::int64_t classes, std::int64_t width, const dp::Shape& input) {
        return models::mnist_convnet({.classes = classes, .width = width, .input = input});
      },
      "classes"_a = 10, nb::kw_only(), "width"_a = 32, "input"_a = dp::Shape{1, 28, 28},
      "The network of PyTorch's MNIST example. width scales all of its layers.");
  m.def(
      "cifar_speed",
      [](std::int64_t classes, const dp::Shape& input, std::int64_t width) {
        return models::cifar_speed({.classes = classes, .input = input, .width = width});
      },
      "classes"_a = 10, nb::kw_only(), "input"_a = dp::Shape{3, 32, 32}, "width"_a = 64, "The network of airbench94.");
  m.def(
      "mlp",
      [](std::int64_t classes, const dp::Shape& input, const std::vector<std::int64_t>& hidden) {
        return models::mlp({.input = input, .hidden = hidden, .classes = classes});
      },
      "classes"_a = 10, nb::kw_only(), "input"_a = dp::Shape{1, 28, 28}, "hidden"_a = std::vector<std::int64_t>{128},
      "Linear layers with ReLU between them.");
  m.def(
      "make_model",
      [](const std::string& name, const dp::Shape& input, std::int64_t classes) {
        return models::find(name).make(input, classes);
      },
      "name"_a, "input"_a, "classes"_a, "A network of the registry, for images of this shape (C, H, W).");
  m.def(
      "model_names",
      [] {
        std::vector<std::string> names;
        for (const models::Entry& entry : models::registry()) names.push_back(entry.name);
        return names;
      },
      "The names of the registry.");
}

}  // namespace dp_python
