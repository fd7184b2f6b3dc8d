// ShuffleNet V2 (Ma et al. 2018) with torchvision's names.
#include <dp/models.h>

#include <string>
#include <vector>

namespace dp::models {
namespace {

using Node = ModelBuilder::Node;

struct ShuffleStage {
  std::int64_t channels;
  int units;
};

class ShufflenetBuilder {
 public:
  ShufflenetBuilder(const char* name, const ImagenetOptions& options) : m_(name, options.input) {}

  Model build(const std::vector<ShuffleStage>& stages, std::int64_t features, std::int64_t classes) {
    constexpr std::int64_t kStem = 24;
    Node x = m_.relu(conv_norm("conv1.0", "conv1.1", m_.input(), {.out_channels = kStem, .kernel = 3, .stride = 2}));
    x = m_.max_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1});
    std::int64_t before = kStem;
    int number = 2;
    for (const ShuffleStage& stage : stages) {
      const std::string name = "stage" + std::to_string(number++) + ".";
      for (int i = 0; i < stage.units; ++i) {
        x = unit(name + std::to_string(i), x, before, stage.channels, i == 0 ? 2 : 1);
        before = stage.channels;
      }
    }
    x = m_.relu(conv_norm("conv5.0", "conv5.1", x, {.out_channels = features, .kernel = 1}));
    return m_.build(m_.linear("fc", m_.flatten(m_.global_avg_pool2d(x)), {.out_features = classes}));
  }

 private:
  // Each branch computes half of the channels. At the end the channels of both branches alternate. With stride 1 the
  // first branch is the first half of the input, unchanged.
  Node unit(const std::string& name, Node x, std::int64_t before, std::int64_t channels, int stride) {
    const std::int64_t half = channels / 2;
    const auto conv = [&](const std::string& branch, int place, Node from, const Conv2d& options) {
      const std::string part = name + "." + branch + ".";
      return conv_norm(part + std::to_string(place), part + std::to_string(place + 1), from, options);
    };
    const Conv2d pointwise{.out_channels = half, .kernel = 1};
    Node left, right = x;
    if (stride == 1) {
      left = m_.slice(x, 0, half);
      right = m_.slice(x, half, half);
    } else {
      left = conv("branch1", 0, x, {.out_channels = before, .kernel = 3, .stride = stride, .groups = before});
      left = m_.relu(conv("branch1", 2, left, pointwise));
    }
    right = m_.relu(conv("branch2", 0, right, pointwise));
    right = conv("branch2", 3, right, {.out_channels = half, .kernel = 3, .stride = stride, .groups = half});
    right = m_.relu(conv("branch2", 5, right, pointwise));
    return m_.channel_shuffle(m_.concat({left, right}), 2);
  }
  Node conv_norm(const std::string& name, const std::string& norm, Node x, Conv2d conv) {
    conv.padding = conv.kernel.h / 2;
    conv.bias = false;
    return m_.batch_norm2d(norm, m_.conv2d(name, x, conv));
  }

  ModelBuilder m_;
};

}  // namespace

Model shufflenet_v2_x1_0(const ImagenetOptions& options) {
  return ShufflenetBuilder("shufflenet_v2_x1_0", options)
      .build({{116, 4}, {232, 8}, {464, 4}}, /*features=*/1024, options.classes);
}

}  // namespace dp::models
