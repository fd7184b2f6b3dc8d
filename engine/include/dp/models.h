// The built-in networks and their registry.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dp/augmentation.h"
#include "dp/checkpoint.h"
#include "dp/model.h"
#include "dp/optimizer.h"
#include "dp/trained_model.h"

namespace dp {
class Dataset;
}

namespace dp::models {

struct MnistConvnetOptions {
  std::int64_t classes = 10;
  std::int64_t width = 32;  // channels of the first convolution
  Shape input{1, 28, 28};
};
// conv 1-32-64 (3x3, ReLU), max-pool 2, dropout .25, fc 9216-128 (ReLU), dropout .5, fc 128-classes: the network of
// PyTorch's MNIST example. `width` scales all of its layers.
Model mnist_convnet(const MnistConvnetOptions& options = {});

struct ResnetOptions {
  std::int64_t classes = 10;
  Shape input{3, 32, 32};
  // The first convolution: 7x7 with stride 2 and a max-pool, as for ImageNet, or 3x3 with stride 1 and no pool, as for
  // CIFAR.
  enum class Stem { by_size, imagenet, cifar };  // by_size: cifar if the image is below 64 pixels high
  Stem stem = Stem::by_size;
  std::int64_t width = 64;  // channels of the first stage; each further stage doubles them
  bool relu = true;         // false omits every ReLU: a smooth function, for gradient checks only
};
// The ResNets with torchvision's names and initial distributions. 18 and 34 layers: basic blocks, 8 x width features at
// the end. 50, 101 and 152: bottlenecks with the stride in their 3x3 convolution, 32 x width features at the end.
Model resnet18(const ResnetOptions& options = {});
Model resnet34(const ResnetOptions& options = {});
Model resnet50(const ResnetOptions& options = {});
Model resnet101(const ResnetOptions& options = {});
Model resnet152(const ResnetOptions& options = {});
// resnet50 with other widths inside the bottlenecks: 32 groups of 4 channels (Xie et al. 2017), or twice the width
// (Zagoruyko and Komodakis 2016).
Model resnext50_32x4d(const ResnetOptions& options = {});
Model wide_resnet50_2(const ResnetOptions& options = {});

struct ImagenetOptions {
  std::int64_t classes = 1000;
  Shape input{3, 224, 224};
};
// The networks below equal torchvision's networks of the same names.

// Inverted residuals of depthwise convolutions, ReLU6, dropout .2 before the classifier.
Model mobilenet_v2(const ImagenetOptions& options = {});
// The same with squeeze-and-excitation and hard-swish.
Model mobilenet_v3_small(const ImagenetOptions& options = {});
Model mobilenet_v3_large(const ImagenetOptions& options = {});
// Inverted residuals with squeeze-and-excitation, SiLU and stochastic depth.
Model efficientnet_b0(const ImagenetOptions& options = {});
// Bottlenecks of convolutions in groups of 8 channels, with squeeze-and-excitation.
Model regnet_y_400mf(const ImagenetOptions& options = {});
// Each unit has two branches and then mixes their channels (channel shuffle).
Model shufflenet_v2_x1_0(const ImagenetOptions& options = {});
// Depthwise 7x7 convolutions, layer normalisation and GELU.
Model convnext_tiny(const ImagenetOptions& options = {});
// Four blocks of 6, 12, 24 and 16 layers. A layer reads the results of all earlier ones of its block and adds 32
// channels.
Model densenet121(const ImagenetOptions& options = {});
// Inception blocks: four branches of different windows, joined along their channels. Without the auxiliary classifiers,
// which torchvision also leaves out of its trained network.
Model googlenet(const ImagenetOptions& options = {});

struct VggOptions {
  std::int64_t classes = 1000;
  Shape input{3, 224, 224};
  std::int64_t hidden = 4096;  // features of both hidden linear layers
};
// 8, 10, 13 or 16 convolutions of 3x3 with batch normalisation in five stages, and three linear layers with dropout .5
// before two of them: torchvision's networks of the same names.
Model vgg11_bn(const VggOptions& options = {});
Model vgg13_bn(const VggOptions& options = {});
Model vgg16_bn(const VggOptions& options = {});
Model vgg19_bn(const VggOptions& options = {});

struct CifarSpeedOptions {
  std::int64_t classes = 10;
  Shape input{3, 32, 32};   // at least 31 x 31
  std::int64_t width = 64;  // channels of the first stage; the others have four times as many
};
// Three stages of two 3x3 convolutions with GELU behind a 2x2 convolution: the network with which airbench94 trains
// CIFAR-10 in seconds.
Model cifar_speed(const CifarSpeedOptions& options = {});
// The initial values of `whiten.weight`, its 2x2 convolution. The first 12 filters are the principal directions of the
// 2x2 patches of the first 5000 images. Each is divided by the standard deviation of the patches along it. The other 12
// filters are their negatives. The recipe freezes them.
NamedTensors cifar_speed_whitening(const Dataset& images);

struct MlpOptions {
  Shape input{1, 28, 28};
  std::vector<std::int64_t> hidden{128};
  std::int64_t classes = 10;
};
// Linear layers with ReLU between them: the smallest example of a custom model.
Model mlp(const MlpOptions& options = {});

// Default training options of a model.
struct Recipe {
  std::string dataset = "digits";
  bool adamw = false;  // instead of SGD
  float lr = 0.05f;
  float momentum = 0.9f;  // of SGD
  bool nesterov = false;
  float weight_decay = 0;
  ScheduleKind schedule = ScheduleKind::cosine;
  std::vector<double> milestones{};  // for multistep, as fractions of the epochs
  std::int64_t batch_size = 128;     // global, for which the learning rate is meant
  std::int64_t epochs = 0;           // 0: those of the data set
  double warmup = 0;                 // as a fraction of the epochs
  float label_smoothing = 0;
  std::vector<std::string> freeze{};      // patterns of parameters, as --freeze has them
  std::vector<std::string> lr_factors{};  // as --lr-factor has them
  bool no_decay_norm_bias = false;
  Augmentation augmentation{};  // changes to the data set's
};

struct Entry {
  std::string name;
  std::string summary;  // one line for --list-models
  Recipe recipe;
  std::function<Model(const Shape& input, std::int64_t classes)> make;
  // Computes initial values of some parameters from the training images. The others are drawn. May be empty.
  std::function<NamedTensors(const Dataset& train)> first_weights{};
  std::vector<std::string> notices{};  // to print when it is used; one line each
};
const std::vector<Entry>& registry();
// Error(usage) for an unknown name lists the names. A name that ends with ".onnx" is the path of a file: its network is
// read at the first call, as read_onnx() does, and has the path as its name.
const Entry& find(std::string_view name);
// Makes find() return this network instead of reading the file, such as that of a checkpoint.
void use_network(const std::string& onnx_path, TrainedModel network);
// Adds a network of your program to the registry. Call it before train_main(). Error(usage) if the name exists already,
// or if it contains anything but letters, digits, '_' and '.'.
void add(Entry entry);

}  // namespace dp::models
