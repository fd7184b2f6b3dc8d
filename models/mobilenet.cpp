// MobileNetV2 (Sandler et al. 2018) with torchvision's names.
#include <dp/models.h>

#include <string>

namespace dp::models {
namespace {

using Node = ModelBuilder::Node;

class MobilenetBuilder {
 public:
  explicit MobilenetBuilder(const MobilenetOptions& options)
      : m_("mobilenet_v2", options.input), classes_(options.classes) {}

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

}  // namespace

Model mobilenet_v2(const MobilenetOptions& options) { return MobilenetBuilder(options).build(); }

}  // namespace dp::models
