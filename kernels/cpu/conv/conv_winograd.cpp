#include "kernels/cpu/conv/conv_winograd.h"

namespace dp::kernels {

// Tiles of 4 x 4 results take a quarter of the products of a direct 3 x 3 convolution, but images and results are transformed,
// whole tiles where the image ends inside one, and, once a call, the weights. With oneDNN 2.6 on Zen 4 that comes to
//   direct time / Winograd time = 2.3 * (share of the tiles that is image) * tiles / (tiles + kWeightTiles),
// within 15 % for 32 to 512 channels, images of 4 to 56 and batches of 1 to 64. Our own is within a quarter of that.
bool winograd_pays(ConvPass pass, const Shape& weights, const Shape& result, const Window& window) {
  if (window.kernel != 3 || window.stride != 1 || window.padding > 1) return false;
  if (weights[0] < 32 || weights[1] < 32) return false;
  constexpr double kFewerProducts = 2.3, kWorthIt = 1.2;
  const double weight_tiles = pass == ConvPass::weights ? 8 : 24;
  const std::int64_t tiles = result[0] * ((result[2] + 3) / 4) * ((result[3] + 3) / 4);
  if (tiles == 0) return false;
  const double used = static_cast<double>(result[0] * result[2] * result[3]) / static_cast<double>(16 * tiles);
  const double count = static_cast<double>(tiles);
  return kFewerProducts * used * count / (count + weight_tiles) >= kWorthIt;
}

}  // namespace dp::kernels
