// The smallest example of a custom model.
#include <dp/models.h>

namespace dp::models {

Model mlp(const MlpOptions& options) {
  ModelBuilder m("mlp", options.input);
  auto x = options.input.rank() == 1 ? m.input() : m.flatten(m.input());
  int layer = 1;
  for (const std::int64_t features : options.hidden) {
    x = m.linear("fc" + std::to_string(layer++), x, {.out_features = features});
    x = m.relu(x);
  }
  x = m.linear("fc" + std::to_string(layer), x, {.out_features = options.classes});
  return m.build(x);
}

}  // namespace dp::models
