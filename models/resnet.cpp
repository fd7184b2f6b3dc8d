// The ResNets with torchvision's names.
#include <dp/models.h>

#include <array>
#include <string>

namespace dp::models {
namespace {

using Node = ModelBuilder::Node;

enum class Block { basic, bottleneck };

// The 3x3 convolutions of bottlenecks. A group has `width` channels in the first stage if that has 64.
struct Groups {
  int count = 1, width = 64;
};

class ResnetBuilder {
 public:
  ResnetBuilder(const char* name, const ResnetOptions& options, const Groups& groups = {})
      : options_(options), groups_(groups), m_(name, options.input), channels_(options.width) {}

  // counts: the number of blocks in each stage.
  Model build(Block kind, const std::array<int, 4>& counts) {
    Node x = stem();
    std::int64_t width = options_.width;
    for (int stage = 0; stage < 4; ++stage, width *= 2)
      for (int i = 0; i < counts[static_cast<std::size_t>(stage)]; ++i) {
        const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(i);
        x = block(kind, name, x, width, stage > 0 && i == 0 ? 2 : 1);
      }
    x = m_.flatten(m_.global_avg_pool2d(x));
    return m_.build(m_.linear("fc", x, {.out_features = options_.classes}));
  }

 private:
  Node stem() {
    using Stem = ResnetOptions::Stem;
    const bool large = options_.stem == Stem::imagenet ||
                       (options_.stem == Stem::by_size && options_.input.rank() == 3 && options_.input[1] >= 64);
    Node x = large ? conv("conv1", m_.input(), channels_, 7, 2) : conv("conv1", m_.input(), channels_, 3, 1);
    x = relu(m_.batch_norm2d("bn1", x));
    return large ? m_.max_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1}) : x;
  }

  // relu(path(x) + x). If the shape changes, the final x is replaced by its 1x1 downsample projection. The path of a
  // basic block has two 3x3 convolutions, the first with the stride; that of a bottleneck has a 1x1 convolution to
  // `width` channels (in groups: to other widths), a 3x3 convolution with the stride, and a 1x1 convolution to four
  // times `width`.
  Node block(Block kind, const std::string& name, Node x, std::int64_t width, int stride) {
    const std::int64_t out = kind == Block::basic ? width : 4 * width;
    Node y = x;
    if (kind == Block::basic) {
      y = relu(conv_norm(name, "1", y, width, 3, stride));
      y = conv_norm(name, "2", y, out, 3, 1);
    } else {
      const std::int64_t inner = width * groups_.width / 64 * groups_.count;
      y = relu(conv_norm(name, "1", y, inner, 1, 1));
      y = relu(conv_norm(name, "2", y, inner, 3, stride, groups_.count));
      y = conv_norm(name, "3", y, out, 1, 1);
    }
    if (stride != 1 || channels_ != out)
      x = m_.batch_norm2d(name + ".downsample.1", conv(name + ".downsample.0", x, out, 1, stride));
    channels_ = out;
    return relu(m_.add(y, x));
  }

  Node conv_norm(const std::string& block, const char* number, Node x, std::int64_t channels, int kernel, int stride,
                 int groups = 1) {
    return m_.batch_norm2d(block + ".bn" + number, conv(block + ".conv" + number, x, channels, kernel, stride, groups));
  }
  Node conv(const std::string& name, Node x, std::int64_t channels, int kernel, int stride, int groups = 1) {
    return m_.conv2d(name, x,
                     {.out_channels = channels,
                      .kernel = kernel,
                      .stride = stride,
                      .padding = kernel / 2,
                      .groups = groups,
                      .bias = false,
                      .init = ConvInit::kaiming_normal_fan_out});
  }
  Node relu(Node x) { return options_.relu ? m_.relu(x) : x; }

  const ResnetOptions options_;
  const Groups groups_;
  ModelBuilder m_;
  std::int64_t channels_;  // of the last block's output
};

}  // namespace

Model resnet18(const ResnetOptions& options) {
  return ResnetBuilder("resnet18", options).build(Block::basic, {2, 2, 2, 2});
}
Model resnet34(const ResnetOptions& options) {
  return ResnetBuilder("resnet34", options).build(Block::basic, {3, 4, 6, 3});
}
Model resnet50(const ResnetOptions& options) {
  return ResnetBuilder("resnet50", options).build(Block::bottleneck, {3, 4, 6, 3});
}
Model resnet101(const ResnetOptions& options) {
  return ResnetBuilder("resnet101", options).build(Block::bottleneck, {3, 4, 23, 3});
}
Model resnet152(const ResnetOptions& options) {
  return ResnetBuilder("resnet152", options).build(Block::bottleneck, {3, 8, 36, 3});
}
Model resnext50_32x4d(const ResnetOptions& options) {
  return ResnetBuilder("resnext50_32x4d", options, {.count = 32, .width = 4}).build(Block::bottleneck, {3, 4, 6, 3});
}
Model wide_resnet50_2(const ResnetOptions& options) {
  return ResnetBuilder("wide_resnet50_2", options, {.count = 1, .width = 128}).build(Block::bottleneck, {3, 4, 6, 3});
}

}  // namespace dp::models
