// GoogLeNet (Szegedy et al. 2014) with torchvision's names: batch normalisation, and 3x3 convolutions in place of 5x5.
#include <dp/models.h>

#include <string>

namespace dp::models {
namespace {

using Node = ModelBuilder::Node;

// Channels of the four branches of an inception block. Two of them begin with a 1x1 convolution to `..._in` channels.
struct Inception {
  std::int64_t one, three_in, three, five_in, five, pooled;
};

class GooglenetBuilder {
 public:
  explicit GooglenetBuilder(const ImagenetOptions& options) : m_("googlenet", options.input) {}

  Model build(std::int64_t classes) {
    Node x = conv("conv1", m_.input(), {.out_channels = 64, .kernel = 7, .stride = 2, .padding = 3});
    x = conv("conv2", halved(x), {.out_channels = 64, .kernel = 1});
    x = halved(conv("conv3", x, {.out_channels = 192, .kernel = 3, .padding = 1}));
    x = inception("inception3a", x, {64, 96, 128, 16, 32, 32});
    x = halved(inception("inception3b", x, {128, 128, 192, 32, 96, 64}));
    x = inception("inception4a", x, {192, 96, 208, 16, 48, 64});
    x = inception("inception4b", x, {160, 112, 224, 24, 64, 64});
    x = inception("inception4c", x, {128, 128, 256, 24, 64, 64});
    x = inception("inception4d", x, {112, 144, 288, 32, 64, 64});
    x = inception("inception4e", x, {256, 160, 320, 32, 128, 128});
    x = m_.max_pool2d(x, {.kernel = 2, .ceil_mode = true});
    x = inception("inception5a", x, {256, 160, 320, 32, 128, 128});
    x = inception("inception5b", x, {384, 192, 384, 48, 128, 128});
    x = m_.dropout("dropout", m_.flatten(m_.global_avg_pool2d(x)), 0.2f);
    return m_.build(
        m_.linear("fc", x, {.out_features = classes, .init = Init{InitKind::normal, 0.01f}, .torch_bias = true}));
  }

 private:
  Node inception(const std::string& name, Node x, const Inception& c) {
    const Node one = conv(name + ".branch1", x, {.out_channels = c.one, .kernel = 1});
    const Node three = reduced_conv(name + ".branch2", x, c.three_in, c.three);
    const Node five = reduced_conv(name + ".branch3", x, c.five_in, c.five);
    const Node pooled = m_.max_pool2d(x, {.kernel = 3, .stride = 1, .padding = 1, .ceil_mode = true});
    return m_.concat({one, three, five, conv(name + ".branch4.1", pooled, {.out_channels = c.pooled, .kernel = 1})});
  }
  Node reduced_conv(const std::string& name, Node x, std::int64_t inner, std::int64_t channels) {
    x = conv(name + ".0", x, {.out_channels = inner, .kernel = 1});
    return conv(name + ".1", x, {.out_channels = channels, .kernel = 3, .padding = 1});
  }
  Node conv(const std::string& name, Node x, Conv2d options) {
    options.bias = false;
    options.init = ConvInit::normal_001;
    return m_.relu(m_.batch_norm2d(name + ".bn", m_.conv2d(name + ".conv", x, options), {.eps = 0.001}));
  }
  Node halved(Node x) { return m_.max_pool2d(x, {.kernel = 3, .stride = 2, .ceil_mode = true}); }

  ModelBuilder m_;
};

}  // namespace

Model googlenet(const ImagenetOptions& options) { return GooglenetBuilder(options).build(options.classes); }

}  // namespace dp::models
