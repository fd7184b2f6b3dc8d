// ResNet-18 with torchvision's names.
#include <dp/models.h>

namespace dp::models {
namespace {

using Node = ModelBuilder::Node;

class Builder {
 public:
  explicit Builder(const Resnet18Options& options)
      : options_(options), m_("resnet18", options.input), channels_(options.width) {}

  Model build() {
    Node x = stem();
    for (int stage = 1; stage <= 4; ++stage) {
      const std::string name = "layer" + std::to_string(stage);
      x = block(name + ".0", x, stage == 1 ? 1 : 2);
      x = block(name + ".1", x, 1);
    }
    x = m_.flatten(m_.global_avg_pool2d(x));
    return m_.build(m_.linear("fc", x, {.out_features = options_.classes}));
  }

 private:
  Node stem() {
    using Stem = Resnet18Options::Stem;
    const bool large = options_.stem == Stem::imagenet ||
                       (options_.stem == Stem::by_size && options_.input.rank() == 3 && options_.input[1] >= 64);
    Node x = large ? conv("conv1", m_.input(), channels_, 7, 2) : conv("conv1", m_.input(), channels_, 3, 1);
    x = relu(m_.batch_norm2d("bn1", x));
    return large ? m_.max_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1}) : x;
  }

  // relu(bn2(conv2(relu(bn1(conv1(x))))) + x). If the shape changes, the final x is replaced by its 1x1 downsample
  // projection.
  Node block(const std::string& name, Node x, int stride) {
    const bool reshapes = stride != 1;
    if (reshapes) channels_ *= 2;
    Node y = relu(m_.batch_norm2d(name + ".bn1", conv(name + ".conv1", x, channels_, 3, stride)));
    y = m_.batch_norm2d(name + ".bn2", conv(name + ".conv2", y, channels_, 3, 1));
    if (reshapes) x = m_.batch_norm2d(name + ".downsample.1", conv(name + ".downsample.0", x, channels_, 1, stride));
    return relu(m_.add(y, x));
  }

  Node conv(const std::string& name, Node x, std::int64_t channels, int kernel, int stride) {
    return m_.conv2d(name, x,
                     {.out_channels = channels,
                      .kernel = kernel,
                      .stride = stride,
                      .padding = kernel / 2,
                      .bias = false,
                      .init = ConvInit::kaiming_normal_fan_out});
  }
  Node relu(Node x) { return options_.relu ? m_.relu(x) : x; }

  const Resnet18Options options_;
  ModelBuilder m_;
  std::int64_t channels_;
};

}  // namespace

Model resnet18(const Resnet18Options& options) { return Builder(options).build(); }

}  // namespace dp::models
