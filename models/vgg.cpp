// VGG with batch normalisation (Simonyan and Zisserman 2014) with torchvision's names.
#include <dp/models.h>

#include <string>
#include <vector>

namespace dp::models {
namespace {

using Node = ModelBuilder::Node;

// Five stages of 3x3 convolutions, each followed by a max-pool; then three linear layers on 7x7 cells.
Model build(const std::string& name, const std::vector<int>& convolutions_of_stages, const VggOptions& options) {
  ModelBuilder m(name, options.input);
  Node x = m.input();
  int index = 0;  // in torchvision's list of layers
  std::int64_t channels = 64;
  for (const int convolutions : convolutions_of_stages) {
    for (int i = 0; i < convolutions; ++i, index += 3) {
      const Conv2d conv{.out_channels = channels, .kernel = 3, .padding = 1, .init = ConvInit::kaiming_normal_fan_out};
      x = m.conv2d("features." + std::to_string(index), x, conv);
      x = m.relu(m.batch_norm2d("features." + std::to_string(index + 1), x));
    }
    x = m.max_pool2d(x);
    ++index;
    if (channels < 512) channels *= 2;
  }
  x = m.flatten(m.adaptive_avg_pool2d(x, 7));
  const auto linear = [&](const char* layer, std::int64_t features) {
    return m.linear(layer, x, {.out_features = features, .init = Init{InitKind::normal, 0.01f}});
  };
  x = m.dropout("classifier.2", m.relu(linear("classifier.0", options.hidden)), 0.5f);
  x = m.dropout("classifier.5", m.relu(linear("classifier.3", options.hidden)), 0.5f);
  return m.build(linear("classifier.6", options.classes));
}

}  // namespace

Model vgg11_bn(const VggOptions& options) { return build("vgg11_bn", {1, 1, 2, 2, 2}, options); }
Model vgg13_bn(const VggOptions& options) { return build("vgg13_bn", {2, 2, 2, 2, 2}, options); }
Model vgg16_bn(const VggOptions& options) { return build("vgg16_bn", {2, 2, 3, 3, 3}, options); }
Model vgg19_bn(const VggOptions& options) { return build("vgg19_bn", {2, 2, 4, 4, 4}, options); }

}  // namespace dp::models
