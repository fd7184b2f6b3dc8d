#include "kernels/cpu/conv/conv_winograd.h"

namespace dp::kernels {

// Winograd with tiles of 4 x 4 results needs a quarter of the multiplications of a direct 3 x 3 convolution. It adds
// transforms of inputs and results, of whole tiles even at image edges, and once per call of the weights. Measured with
// oneDNN 2.6 on Zen 4:
//   direct time / Winograd time = 2.3 * (fraction of tile cells in the image) * tiles / (tiles + weight_tiles),
// within 15 % for 32 to 512 channels, images of 4 to 56 pixels and batches of 1 to 64. Our own Winograd is within 25 %
// of that (docs/decisions/0016).
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
