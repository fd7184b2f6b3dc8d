// Small images as PNG and base64, for data URIs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dp/shape.h"

namespace dp {

// The pixels of a data set's image of shape (C,H,W), plane after plane, as a PNG: RGB with three channels, otherwise
// grey from the first. An image with more than 80 pixels on a side is reduced by a whole factor, to means.
std::vector<std::uint8_t> png_of(const Shape& shape, std::span<const std::uint8_t> planes);

std::string base64(std::span<const std::uint8_t> bytes);

}  // namespace dp
