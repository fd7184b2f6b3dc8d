// RegNet (Radosavovic et al. 2020) with torchvision's names.
#include <dp/models.h>

#include <cmath>
#include <string>
#include <vector>

namespace dp::models {
namespace {

using Node = ModelBuilder::Node;

// A network of the paper's design space. The width of block i is start + slope * i. It is rounded to start times a
// power of `factor`, then to a multiple of 8. Blocks of equal width form a stage.
struct RegnetDesign {
  int blocks;
  double start, slope, factor;
  std::int64_t group_width;
};

// The width of each block.
std::vector<std::int64_t> widths_of(const RegnetDesign& design) {
  std::vector<std::int64_t> widths;
  for (int i = 0; i < design.blocks; ++i) {
    const double line = design.start + design.slope * i;
    const double power = std::round(std::log(line / design.start) / std::log(design.factor));
    widths.push_back(static_cast<std::int64_t>(std::round(design.start * std::pow(design.factor, power) / 8)) * 8);
  }
  return widths;
}

class RegnetBuilder {
 public:
  RegnetBuilder(const char* name, const ImagenetOptions& options) : m_(name, options.input) {}

  Model build(const RegnetDesign& design, std::int64_t classes) {
    constexpr std::int64_t kStem = 32;
    group_width_ = design.group_width;
    Node x = m_.relu(conv_norm("stem", m_.input(), {.out_channels = kStem, .kernel = 3, .stride = 2}));
    std::int64_t before = kStem;
    int stage = 0, block = 0;
    for (const std::int64_t width : widths_of(design)) {
      const bool begins = width != before;
      if (begins) ++stage, block = 0;
      const std::string number = std::to_string(stage);
      const std::string name = "trunk_output.block" + number + ".block" + number + "-" + std::to_string(block++);
      x = bottleneck(name, x, before, width, begins ? 2 : 1);
      before = width;
    }
    x = m_.flatten(m_.global_avg_pool2d(x));
    return m_.build(m_.linear("fc", x, {.out_features = classes, .init = Init{InitKind::normal, 0.01f}}));
  }

 private:
  // A 1x1 convolution, a 3x3 convolution in groups, squeeze-and-excitation to a quarter of the input's channels, and a
  // 1x1 convolution, added to the input.
  Node bottleneck(const std::string& name, Node x, std::int64_t before, std::int64_t width, int stride) {
    Node shortcut = x;
    if (before != width || stride != 1)
      shortcut = conv_norm(name + ".proj", x, {.out_channels = width, .kernel = 1, .stride = stride});
    Node y = m_.relu(conv_norm(name + ".f.a", x, {.out_channels = width, .kernel = 1}));
    const Conv2d grouped{.out_channels = width, .kernel = 3, .stride = stride, .groups = width / group_width_};
    y = m_.relu(conv_norm(name + ".f.b", y, grouped));
    Node s = m_.relu(excitation(name + ".f.se.fc1", m_.global_avg_pool2d(y), before / 4));
    s = m_.activation(excitation(name + ".f.se.fc2", s, width), Sigmoid{});
    y = conv_norm(name + ".f.c", m_.multiply(y, s), {.out_channels = width, .kernel = 1});
    return m_.relu(m_.add(shortcut, y));
  }
  Node excitation(const std::string& name, Node x, std::int64_t channels) {
    return m_.conv2d(name, x, {.out_channels = channels, .kernel = 1, .init = kInit, .torch_bias = true});
  }
  Node conv_norm(const std::string& name, Node x, Conv2d conv) {
    conv.padding = conv.kernel.h / 2;
    conv.bias = false;
    conv.init = kInit;
    return m_.batch_norm2d(name + ".1", m_.conv2d(name + ".0", x, conv));
  }

  static constexpr ConvInit kInit = ConvInit::kaiming_normal_fan_out;
  ModelBuilder m_;
  std::int64_t group_width_ = 0;
};

}  // namespace

Model regnet_y_400mf(const ImagenetOptions& options) {
  return RegnetBuilder("regnet_y_400mf", options)
      .build({.blocks = 16, .start = 48, .slope = 27.89, .factor = 2.09, .group_width = 8}, options.classes);
}

}  // namespace dp::models
