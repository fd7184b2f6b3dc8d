// The network of PyTorch's MNIST example, with its layer names.
#include <dp/models.h>

namespace dp::models {

Model mnist_convnet(const MnistConvnetOptions& options) {
  ModelBuilder m("mnist_convnet", options.input);
  auto x = m.conv2d("conv1", m.input(), {.out_channels = options.width, .kernel = 3});
  x = m.relu(x);
  x = m.conv2d("conv2", x, {.out_channels = 2 * options.width, .kernel = 3});
  x = m.relu(x);
  x = m.max_pool2d(x, {.kernel = 2, .stride = 2});
  x = m.dropout("dropout1", x, 0.25f);
  x = m.flatten(x);
  x = m.linear("fc1", x, {.out_features = 4 * options.width});
  x = m.relu(x);
  x = m.dropout("dropout2", x, 0.5f);
  x = m.linear("fc2", x, {.out_features = options.classes});
  return m.build(x);
}

}  // namespace dp::models
