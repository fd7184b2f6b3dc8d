// EfficientNet (Tan and Le 2019) with torchvision's names.
#include <dp/models.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace dp::models {
namespace {

using Node = ModelBuilder::Node;

// Blocks in a row, "MBConv" in the paper.
struct MbStage {
  int expansion, kernel, stride;  // the stride of its first block
  std::int64_t channels;
  int blocks;
};

class EfficientnetBuilder {
 public:
  explicit EfficientnetBuilder(const ImagenetOptions& options) : m_("efficientnet_b0", options.input) {}

  Model build(const std::vector<MbStage>& stages, std::int64_t classes) {
    constexpr float kDropped = 0.2f;  // of the last block; proportionally fewer before it
    int all = 0, block = 0, number = 1;
    for (const MbStage& stage : stages) all += stage.blocks;
    channels_ = 32;
    Node x = silu(conv_norm("features.0", m_.input(), {.out_channels = channels_, .kernel = 3, .stride = 2}));
    for (const MbStage& stage : stages) {
      const std::string name = "features." + std::to_string(number++) + ".";
      for (int i = 0; i < stage.blocks; ++i) {
        MbStage own = stage;
        if (i > 0) own.stride = 1;
        const float dropped = kDropped * static_cast<float>(block++) / static_cast<float>(all);
        x = inverted_residual(name + std::to_string(i), x, own, dropped);
      }
    }
    const std::int64_t features = 4 * channels_;
    x = silu(conv_norm("features." + std::to_string(number), x, {.out_channels = features, .kernel = 1}));
    x = m_.dropout("classifier.0", m_.flatten(m_.global_avg_pool2d(x)), 0.2f);
    const Init init{InitKind::uniform, 1 / std::sqrt(static_cast<float>(classes))};
    return m_.build(m_.linear("classifier.1", x, {.out_features = classes, .init = init}));
  }

 private:
  // A 1x1 convolution to more channels, a depthwise convolution, squeeze-and-excitation, and a 1x1 convolution. If the
  // result has the shape of the input, it is added to the input. `dropped`: the probability that a sample skips the
  // block.
  Node inverted_residual(const std::string& name, Node x, const MbStage& stage, float dropped) {
    const std::int64_t inner = channels_ * stage.expansion, squeezed = std::max<std::int64_t>(1, channels_ / 4);
    int part = 0;
    const auto next = [&] { return name + ".block." + std::to_string(part++); };
    Node y = x;
    if (stage.expansion != 1) y = silu(conv_norm(next(), y, {.out_channels = inner, .kernel = 1}));
    y = silu(
        conv_norm(next(), y, {.out_channels = inner, .kernel = stage.kernel, .stride = stage.stride, .groups = inner}));
    y = squeeze_excitation(next(), y, inner, squeezed);
    y = conv_norm(next(), y, {.out_channels = stage.channels, .kernel = 1});
    const bool adds = stage.stride == 1 && channels_ == stage.channels;
    channels_ = stage.channels;
    return adds ? m_.add(m_.stochastic_depth(name + ".stochastic_depth", y, dropped), x) : y;
  }
  Node squeeze_excitation(const std::string& name, Node x, std::int64_t channels, std::int64_t few) {
    const auto conv = [&](const std::string& part, Node from, std::int64_t out) {
      return m_.conv2d(name + part, from, {.out_channels = out, .kernel = 1, .init = ConvInit::kaiming_normal_fan_out});
    };
    const Node squeezed = silu(conv(".fc1", m_.global_avg_pool2d(x), few));
    return m_.multiply(x, m_.activation(conv(".fc2", squeezed, channels), Sigmoid{}));
  }
  Node conv_norm(const std::string& name, Node x, Conv2d conv) {
    conv.padding = conv.kernel.h / 2;
    conv.bias = false;
    conv.init = ConvInit::kaiming_normal_fan_out;
    return m_.batch_norm2d(name + ".1", m_.conv2d(name + ".0", x, conv));
  }
  Node silu(Node x) { return m_.activation(x, Silu{}); }

  ModelBuilder m_;
  std::int64_t channels_ = 0;  // of the last block's output
};

}  // namespace

Model efficientnet_b0(const ImagenetOptions& options) {
  return EfficientnetBuilder(options).build({{1, 3, 1, 16, 1},
                                             {6, 3, 2, 24, 2},
                                             {6, 5, 2, 40, 2},
                                             {6, 3, 2, 80, 3},
                                             {6, 5, 1, 112, 3},
                                             {6, 5, 2, 192, 4},
                                             {6, 3, 1, 320, 1}},
                                            options.classes);
}

}  // namespace dp::models
