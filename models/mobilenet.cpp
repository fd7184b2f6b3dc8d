// MobileNetV2 (Sandler et al. 2018) and V3 (Howard et al. 2019) with torchvision's names.
#include <dp/models.h>

#include <algorithm>
#include <string>
#include <vector>

namespace dp::models {
namespace {

using Node = ModelBuilder::Node;

class MobilenetV2 {
 public:
  explicit MobilenetV2(const ImagenetOptions& options) : m_("mobilenet_v2", options.input), classes_(options.classes) {}

  Model build() {
    struct Stage {
      int expansion;
      std::int64_t channels;
      int blocks, stride;  // the stride of its first block
    };
    constexpr Stage kStages[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                                 {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
    Node x = relu6(conv_norm("features.0.0", "features.0.1", m_.input(), 32, 3, 2));
    channels_ = 32;
    int number = 1;
    for (const Stage& stage : kStages)
      for (int i = 0; i < stage.blocks; ++i)
        x = inverted_residual("features." + std::to_string(number++) + ".conv.", x, stage.expansion, stage.channels,
                              i == 0 ? stage.stride : 1);
    x = relu6(conv_norm("features.18.0", "features.18.1", x, 1280, 1, 1));
    x = m_.dropout("classifier.0", m_.flatten(m_.global_avg_pool2d(x)), 0.2f);
    return m_.build(m_.linear("classifier.1", x, {.out_features = classes_, .init = Init{InitKind::normal, 0.01f}}));
  }

 private:
  // A 1x1 convolution to more channels, a depthwise 3x3 convolution, and a 1x1 convolution to few channels, without
  // ReLU. The input is added if the shape stays.
  Node inverted_residual(const std::string& name, Node x, int expansion, std::int64_t channels, int stride) {
    const std::int64_t inner = channels_ * expansion;
    int part = 0;
    const auto next = [&] { return name + std::to_string(part++); };
    Node y = x;
    if (expansion != 1) {
      const std::string wide = next();
      y = relu6(conv_norm(wide + ".0", wide + ".1", y, inner, 1, 1));
    }
    const std::string depthwise = next();
    y = relu6(conv_norm(depthwise + ".0", depthwise + ".1", y, inner, 3, stride, inner));
    const std::string narrow = next();
    y = conv_norm(narrow, next(), y, channels, 1, 1);
    const bool adds = stride == 1 && channels_ == channels;
    channels_ = channels;
    return adds ? m_.add(x, y) : y;
  }
  Node conv_norm(const std::string& conv, const std::string& norm, Node x, std::int64_t channels, int kernel,
                 int stride, std::int64_t groups = 1) {
    return m_.batch_norm2d(norm, m_.conv2d(conv, x,
                                           {.out_channels = channels,
                                            .kernel = kernel,
                                            .stride = stride,
                                            .padding = kernel / 2,
                                            .groups = groups,
                                            .bias = false,
                                            .init = ConvInit::kaiming_normal_fan_out}));
  }
  Node relu6(Node x) { return m_.activation(x, Relu6{}); }

  ModelBuilder m_;
  const std::int64_t classes_;
  std::int64_t channels_ = 0;  // of the last block's output
};

// A block of MobileNetV3: channels inside and at its end, kernel and stride of the depthwise convolution.
struct Bottleneck {
  int kernel;
  std::int64_t inner, channels;
  bool squeezes, swishes;  // squeeze-and-excitation; hard-swish, otherwise ReLU
  int stride;
};

class MobilenetV3 {
 public:
  MobilenetV3(const std::string& name, const ImagenetOptions& options) : m_(name, options.input) {}

  // `features`: of the hidden layer of the classifier.
  Model build(const std::vector<Bottleneck>& blocks, std::int64_t features, std::int64_t classes) {
    Node x = conv_norm("features.0", m_.input(), {.out_channels = 16, .kernel = 3, .stride = 2});
    x = activation(x, true);
    channels_ = 16;
    int number = 1;
    for (const Bottleneck& block : blocks) x = bottleneck("features." + std::to_string(number++) + ".block.", x, block);
    x = conv_norm("features." + std::to_string(number), x, {.out_channels = 6 * channels_, .kernel = 1});
    x = m_.flatten(m_.global_avg_pool2d(activation(x, true)));
    x = activation(m_.linear("classifier.0", x, {.out_features = features, .init = kNormal}), true);
    x = m_.dropout("classifier.2", x, 0.2f);
    return m_.build(m_.linear("classifier.3", x, {.out_features = classes, .init = kNormal}));
  }

 private:
  static constexpr Init kNormal{InitKind::normal, 0.01f};

  Node bottleneck(const std::string& name, Node x, const Bottleneck& block) {
    int part = 0;
    const auto next = [&] { return name + std::to_string(part++); };
    Node y = x;
    if (block.inner != channels_)
      y = activation(conv_norm(next(), y, {.out_channels = block.inner, .kernel = 1}), block.swishes);
    y = conv_norm(next(), y,
                  {.out_channels = block.inner, .kernel = block.kernel, .stride = block.stride, .groups = block.inner});
    y = activation(y, block.swishes);
    if (block.squeezes) y = squeeze_excitation(next(), y, block.inner);
    y = conv_norm(next(), y, {.out_channels = block.channels, .kernel = 1});
    const bool adds = block.stride == 1 && channels_ == block.channels;
    channels_ = block.channels;
    return adds ? m_.add(x, y) : y;
  }

  // Multiplies each channel by a factor in [0, 1], which two 1x1 convolutions compute from the means of all channels.
  Node squeeze_excitation(const std::string& name, Node x, std::int64_t channels) {
    const std::int64_t few = multiple_of_8(channels / 4);
    const auto conv = [&](const std::string& part, Node from, std::int64_t out) {
      return m_.conv2d(name + part, from, {.out_channels = out, .kernel = 1, .init = ConvInit::kaiming_normal_fan_out});
    };
    const Node squeezed = m_.relu(conv(".fc1", m_.global_avg_pool2d(x), few));
    return m_.multiply(x, m_.activation(conv(".fc2", squeezed, channels), HardSigmoid{}));
  }
  // The nearest multiple of 8, unless that is less than 90 %.
  static std::int64_t multiple_of_8(std::int64_t count) {
    const std::int64_t nearest = std::max<std::int64_t>(8, (count + 4) / 8 * 8);
    return 10 * nearest < 9 * count ? nearest + 8 : nearest;
  }

  Node conv_norm(const std::string& name, Node x, Conv2d conv) {
    conv.padding = conv.kernel.h / 2;
    conv.bias = false;
    conv.init = ConvInit::kaiming_normal_fan_out;
    return m_.batch_norm2d(name + ".1", m_.conv2d(name + ".0", x, conv), {.eps = 1e-3, .momentum = 0.01});
  }
  Node activation(Node x, bool swishes) { return swishes ? m_.activation(x, HardSwish{}) : m_.relu(x); }

  ModelBuilder m_;
  std::int64_t channels_ = 0;  // of the last block's output
};

}  // namespace

Model mobilenet_v2(const ImagenetOptions& options) { return MobilenetV2(options).build(); }

Model mobilenet_v3_small(const ImagenetOptions& options) {
  return MobilenetV3("mobilenet_v3_small", options)
      .build({{3, 16, 16, true, false, 2},
              {3, 72, 24, false, false, 2},
              {3, 88, 24, false, false, 1},
              {5, 96, 40, true, true, 2},
              {5, 240, 40, true, true, 1},
              {5, 240, 40, true, true, 1},
              {5, 120, 48, true, true, 1},
              {5, 144, 48, true, true, 1},
              {5, 288, 96, true, true, 2},
              {5, 576, 96, true, true, 1},
              {5, 576, 96, true, true, 1}},
             1024, options.classes);
}

Model mobilenet_v3_large(const ImagenetOptions& options) {
  return MobilenetV3("mobilenet_v3_large", options)
      .build({{3, 16, 16, false, false, 1},
              {3, 64, 24, false, false, 2},
              {3, 72, 24, false, false, 1},
              {5, 72, 40, true, false, 2},
              {5, 120, 40, true, false, 1},
              {5, 120, 40, true, false, 1},
              {3, 240, 80, false, true, 2},
              {3, 200, 80, false, true, 1},
              {3, 184, 80, false, true, 1},
              {3, 184, 80, false, true, 1},
              {3, 480, 112, true, true, 1},
              {3, 672, 112, true, true, 1},
              {5, 672, 160, true, true, 2},
              {5, 960, 160, true, true, 1},
              {5, 960, 160, true, true, 1}},
             1280, options.classes);
}

}  // namespace dp::models
