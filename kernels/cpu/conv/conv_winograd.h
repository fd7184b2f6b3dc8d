// Where Winograd's convolutions, oneDNN's or our own, are taken instead of oneDNN's direct ones.
#pragma once

#include "kernels/ops.h"

namespace dp::kernels {

enum class ConvPass { forward, data, weights };

// Whether Winograd pays for a convolution with these weights whose result (of a pass over weights: whose output) is `result`.
// By the shape alone, so that equal plans compute equal bits.
bool winograd_pays(ConvPass pass, const Shape& weights, const Shape& result, const Window& window);

}  // namespace dp::kernels
