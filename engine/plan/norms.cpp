#include "engine/plan/norms.h"

#include <algorithm>

#include "engine/plan/fusion.h"

namespace dp::engine {

NormTable::NormTable(const Model& model) {
  constexpr std::int64_t kAlign = 16;
  const auto place = [this](std::int64_t channels) {
    const std::int64_t at = buffer_size_;
    buffer_size_ += (channels + kAlign - 1) / kAlign * kAlign;
    return at;
  };
  for (const Node& node : fuse(model, /*dropout=*/false)) {
    if (node.kind != NodeKind::norm) continue;
    const Layer& layer = model.layers()[static_cast<std::size_t>(node.layer)];
    const auto& options = std::get<BatchNorm2d>(layer.kind);
    Norm norm;
    norm.name = layer.name;
    norm.layer = node.layer;
    norm.channels = layer.output[0];
    norm.cells = layer.output[1] * layer.output[2];
    norm.eps = options.eps;
    norm.momentum = options.momentum;
    norm.mean = place(norm.channels);
    norm.variance = place(norm.channels);
    norm.moments = moments_bytes_;
    moments_bytes_ += norm.moments_bytes();
    norm.sums = moments_bytes_;
    moments_bytes_ += norm.sums_bytes();
    norms_.push_back(std::move(norm));
  }
}

const Norm* NormTable::of_one_cell() const {
  const auto found = std::find_if(norms_.begin(), norms_.end(), [](const Norm& norm) { return norm.cells == 1; });
  return found == norms_.end() ? nullptr : &*found;
}

}  // namespace dp::engine
