// DenseNet (Huang et al. 2017) with torchvision's names.
#include <dp/models.h>

#include <cmath>
#include <string>
#include <vector>

namespace dp::models {
namespace {

using Node = ModelBuilder::Node;

constexpr std::int64_t kGrowth = 32;  // channels that a layer adds

class DensenetBuilder {
 public:
  explicit DensenetBuilder(const ImagenetOptions& options) : m_("densenet121", options.input) {}

  Model build(const std::vector<int>& layers_of_blocks, std::int64_t classes) {
    std::int64_t channels = 64;
    Node x = conv("features.conv0", m_.input(), {.out_channels = channels, .kernel = 7, .stride = 2, .padding = 3});
    x = m_.relu(m_.batch_norm2d("features.norm0", x));
    x = m_.max_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1});
    int number = 1;
    for (const int layers : layers_of_blocks) {
      if (number > 1) x = transition("features.transition" + std::to_string(number - 1), x, channels /= 2);
      const std::string block = "features.denseblock" + std::to_string(number++) + ".denselayer";
      for (int layer = 1; layer <= layers; ++layer, channels += kGrowth)
        x = m_.concat({x, dense_layer(block + std::to_string(layer), x)});
    }
    x = m_.relu(m_.batch_norm2d("features.norm5", x));
    x = m_.flatten(m_.global_avg_pool2d(x));
    return m_.build(m_.linear("classifier", x, {.out_features = classes, .init = uniform_of(channels)}));
  }

 private:
  // A 1x1 convolution to four times the growth, then a 3x3 convolution.
  Node dense_layer(const std::string& name, Node x) {
    x = norm_relu_conv(name + ".norm1", name + ".conv1", x, {.out_channels = 4 * kGrowth, .kernel = 1});
    return norm_relu_conv(name + ".norm2", name + ".conv2", x, {.out_channels = kGrowth, .kernel = 3, .padding = 1});
  }
  Node transition(const std::string& name, Node x, std::int64_t channels) {
    x = norm_relu_conv(name + ".norm", name + ".conv", x, {.out_channels = channels, .kernel = 1});
    return m_.avg_pool2d(x);
  }
  Node norm_relu_conv(const std::string& norm, const std::string& name, Node x, const Conv2d& options) {
    return conv(name, m_.relu(m_.batch_norm2d(norm, x)), options);
  }
  Node conv(const std::string& name, Node x, Conv2d options) {
    options.bias = false;
    options.init = ConvInit::kaiming_normal_fan_in;
    return m_.conv2d(name, x, options);
  }
  // The weights have PyTorch's default distribution. The bias is zero.
  static Init uniform_of(std::int64_t features) {
    return {InitKind::uniform, 1.0f / std::sqrt(static_cast<float>(features))};
  }

  ModelBuilder m_;
};

}  // namespace

Model densenet121(const ImagenetOptions& options) {
  return DensenetBuilder(options).build({6, 12, 24, 16}, options.classes);
}

}  // namespace dp::models
