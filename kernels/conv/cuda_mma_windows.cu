#include "kernels/conv/cuda_mma_windows.h"

namespace dp::kernels::cuda {
namespace {

Windows data_windows(const Geometry& g, int part) {
  const DataPoints points(g, part);
  const bool none = points.taps_h == 0 || points.taps_w == 0;
  return {.lines = Count(points.lines),
          .columns = Count(points.columns),
          .cells = points.rows(),
          .height = g.out_height,
          .width = g.out_width,
          .chunks = Count(g.out_channels / kChunk),
          .step = 1,
          .origin_h = (points.first_h + g.padding - points.tap_h) / g.stride,
          .origin_w = (points.first_w + g.padding - points.tap_w) / g.stride,
          .taps_h = none ? 0 : points.taps_h,
          .taps_w = none ? 1 : points.taps_w,
          .direction = -1,
          .tap_h = points.tap_h,
          .tap_w = points.tap_w,
          .tap_step = g.stride,
          .kernel_width = g.kernel_width,
          .first_h = points.first_h,
          .first_w = points.first_w,
          .out_step = g.stride,
          .out_height = g.height,
          .out_width = g.width};
}

}  // namespace

Windows forward_windows(const Geometry& g) {
  return {.lines = g.out_height,
          .columns = g.out_width,
          .cells = g.batch * g.out_height * g.out_width,
          .height = g.height,
          .width = g.width,
          .chunks = Count(g.channels / kChunk),
          .step = g.stride,
          .origin_h = -g.padding,
          .origin_w = -g.padding,
          .taps_h = g.kernel_height,
          .taps_w = g.kernel_width,
          .direction = 1,
          .tap_h = 0,
          .tap_w = 0,
          .tap_step = 1,
          .kernel_width = g.kernel_width,
          .first_h = 0,
          .first_w = 0,
          .out_step = 1,
          .out_height = g.out_height,
          .out_width = g.out_width};
}

MmaProduct forward_product(const Geometry& g, bool bias, bool relu) {
  return {.parts = {forward_windows(g)},
          .channels = g.channels,
          .out_chunks = g.out_channels / kChunk,
          .all_taps = g.kernel_height * g.kernel_width,
          .bias = bias,
          .relu = relu,
          .dense = true};
}

MmaProduct data_product(const Geometry& g) {
  MmaProduct product{.parts = {},
                     .channels = g.out_channels,
                     .out_chunks = g.channels / kChunk,
                     .all_taps = g.kernel_height * g.kernel_width,
                     .bias = false,
                     .relu = false,
                     .dense = g.stride == 1,
                     .count = static_cast<unsigned char>(g.stride * g.stride)};
  for (int part = 0; part < product.count; ++part) product.parts[part] = data_windows(g, part);
  return product;
}

}  // namespace dp::kernels::cuda
