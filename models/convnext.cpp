// ConvNeXt (Liu et al. 2022) with torchvision's names.
#include <dp/models.h>

#include <cstddef>
#include <string>
#include <vector>

namespace dp::models {
namespace {

using Node = ModelBuilder::Node;

struct CnStage {
  std::int64_t channels;
  int blocks;
};

class ConvnextBuilder {
 public:
  ConvnextBuilder(const char* name, const ImagenetOptions& options) : m_(name, options.input) {}

  Model build(const std::vector<CnStage>& stages, float dropped, std::int64_t classes) {
    int all = 0, block = 0;
    for (const CnStage& stage : stages) all += stage.blocks;
    Node x = norm("features.0.1", conv("features.0.0", m_.input(), stages.front().channels, 4));
    for (std::size_t i = 0; i < stages.size(); ++i) {
      if (i > 0) {
        const std::string name = "features." + std::to_string(2 * i);
        x = conv(name + ".1", norm(name + ".0", x), stages[i].channels, 2);
      }
      for (int j = 0; j < stages[i].blocks; ++j) {
        const float own = dropped * static_cast<float>(block++) / static_cast<float>(all - 1);
        x = cn_block("features." + std::to_string(2 * i + 1) + "." + std::to_string(j), x, stages[i].channels, own);
      }
    }
    x = m_.flatten(norm("classifier.0", m_.global_avg_pool2d(x)));
    return m_.build(m_.linear("classifier.2", x, {.out_features = classes, .init = kInit}));
  }

 private:
  // Adds to the input what a depthwise convolution and two linear layers on each pixel compute from it. `dropped`: the
  // probability that a sample skips the block.
  Node cn_block(const std::string& name, Node x, std::int64_t channels, float dropped) {
    const std::string part = name + ".block.";
    const Conv2d depthwise{
        .out_channels = channels, .kernel = 7, .padding = 3, .groups = channels, .init = ConvInit::normal_002};
    Node y = norm(part + "2", m_.conv2d(part + "0", x, depthwise));
    y = m_.pointwise_linear(part + "3", y, {.out_features = 4 * channels, .init = kInit});
    y = m_.pointwise_linear(part + "5", m_.activation(y, Gelu{}), {.out_features = channels, .init = kInit});
    y = m_.scale(name + ".layer_scale", y, 1e-6f);
    return m_.add(m_.stochastic_depth(name + ".stochastic_depth", y, dropped), x);
  }
  // The windows have `size` x `size` pixels and do not overlap.
  Node conv(const std::string& name, Node x, std::int64_t channels, int size) {
    return m_.conv2d(name, x, {.out_channels = channels, .kernel = size, .stride = size, .init = ConvInit::normal_002});
  }
  Node norm(const std::string& name, Node x) { return m_.layer_norm(name, x, {.eps = 1e-6}); }

  static constexpr Init kInit{InitKind::normal, 0.02f};
  ModelBuilder m_;
};

}  // namespace

Model convnext_tiny(const ImagenetOptions& options) {
  return ConvnextBuilder("convnext_tiny", options)
      .build({{96, 3}, {192, 3}, {384, 9}, {768, 3}}, /*dropped=*/0.1f, options.classes);
}

}  // namespace dp::models
