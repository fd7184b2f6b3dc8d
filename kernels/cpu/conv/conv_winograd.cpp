#include "kernels/cpu/conv/conv_winograd.h"

namespace dp::kernels {

// Winograd with tiles of 4 x 4 results needs a quarter of the multiplications of a direct 3 x 3 convolution. It adds
// transforms of inputs and results, of whole tiles even at image edges, and once per call of the weights. With oneDNN
// 2.6, for 32 to 512 channels, images of 4 to 56 pixels and batches of 1 to 64,
//   direct time / Winograd time = 2.3 * (fraction of tile cells in the image) * tiles / (tiles + weight_tiles)
// matches measurements on Zen 4 within 15 % if weight_tiles is 24, or 8 for the weight gradient. A Xeon with AMX needs
// more time for weights that exceed its cache. These constants suit both (docs/decisions/0048).
bool winograd_pays(ConvPass pass, const Shape& weights, const Shape& result, const Window& window) {
  if (window.kernel != 3 || window.stride != 1 || window.padding > 1) return false;
  if (weights[0] < 32 || weights[1] < 32) return false;
  constexpr double kFewerProducts = 2.3, kWorthIt = 1.1;
  const double weight_tiles = pass == ConvPass::weights ? 20 : 36;
  const std::int64_t tiles = result[0] * ((result[2] + 3) / 4) * ((result[3] + 3) / 4);
  if (tiles == 0) return false;
  const double used = static_cast<double>(result[0] * result[2] * result[3]) / static_cast<double>(16 * tiles);
  const double count = static_cast<double>(tiles);
  return kFewerProducts * used * count / (count + weight_tiles) >= kWorthIt;
}

bool own_winograd_pays(const Shape& weights) { return weights[0] * weights[1] >= 256 * 256; }

}  // namespace dp::kernels
