#include <dp/models.h>
#include <dp/train_main.h>

// Depthwise convolutions, squeeze-and-excitation, SiLU and a concatenation.
dp::Model small_net(const dp::Shape& input, std::int64_t classes) {
  dp::ModelBuilder m("small_net", input);
  const auto conv = [&](const std::string& name, auto x, const dp::Conv2d& options) {
    return m.activation(m.batch_norm2d(name + ".bn", m.conv2d(name + ".conv", x, options)), dp::Silu{});
  };
  const auto block = [&](const std::string& name, auto x, std::int64_t channels) {
    auto y = conv(name + ".depthwise", x, {.out_channels = channels, .padding = 1, .groups = channels, .bias = false});
    auto s = m.conv2d(name + ".squeeze", m.global_avg_pool2d(y), {.out_channels = channels / 4, .kernel = 1});
    s = m.conv2d(name + ".excite", m.relu(s), {.out_channels = channels, .kernel = 1});
    y = m.multiply(y, m.activation(s, dp::Sigmoid{}));
    return m.concat({x, conv(name + ".pointwise", y, {.out_channels = channels, .kernel = 1, .bias = false})});
  };
  auto x = conv("stem", m.input(), {.out_channels = 16, .stride = 2, .padding = 1, .bias = false});
  x = m.max_pool2d(block("block1", x, 16));
  x = block("block2", x, 32);
  return m.build(m.linear("fc", m.flatten(m.global_avg_pool2d(x)), {.out_features = classes}));
}

int main(int argc, char** argv) {
  dp::models::add({"small_net", "a small network of our own", {.dataset = "digits", .lr = 0.2f}, small_net});
  return dp::train_main(argc, argv);
}
