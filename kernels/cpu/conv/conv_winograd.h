// The rule for using Winograd, oneDNN's or our own, in place of oneDNN's direct convolutions.
#pragma once

#include "kernels/ops.h"

namespace dp::kernels {

enum class ConvPass { forward, data, weights };

// Whether Winograd pays for these shapes. `result` is the shape of the pass's result; for ConvPass::weights it is the
// shape of the convolution's output. Only shapes decide, so that equal plans compute equal bits.
bool winograd_pays(ConvPass pass, const Shape& weights, const Shape& result, const Window& window);

// Whether our own Winograd computes the gradient of these weights faster than oneDNN's: true if the transformed weights
// (36 floats per pair of channels) far exceed the second-level cache.
bool own_winograd_pays(const Shape& weights);

}  // namespace dp::kernels
