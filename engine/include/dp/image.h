// Image files as the input of a network, prepared as an evaluation prepares them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dp/dataset.h"
#include "dp/shape.h"
#include "dp/tensor.h"

namespace dp {

// A decoded image: interleaved RGB, one byte per channel.
struct RgbImage {
  std::int64_t width = 0, height = 0;
  std::vector<std::uint8_t> pixels{};
};

// Decodes JPEG, PNG or WebP, detected by the first bytes. Expands grey to RGB. Ignores alpha, colour profiles and
// orientation tags. Error(data), with a message that begins with `name`, unless the bytes are a complete image.
RgbImage decode_image(std::span<const std::uint8_t> bytes, const std::string& name = "the image");
// The same with the bytes of a file. Error(data) if it cannot be read.
RgbImage read_image(const std::string& path);

// The bytes of a network's input, (C,H,W) uint8, not yet normalised, with the bits of an evaluation's images: resizing
// and a central crop, or without Preprocessing::resizing, or for an input that is not square, bilinear resizing to
// H x W. An input of one channel gets the luma, as Pillow's convert("L") computes it, before resizing. Error(usage)
// unless C is 1 or 3.
Tensor prepare_image(const RgbImage& image, const Preprocessing& preprocessing, const Shape& input);

// Paths of the .jpg, .jpeg, .png and .webp files (any case) in a folder and the folders in it, sorted by folder and
// name, as in a data set of image folders. Links are followed. Names that begin with a dot are ignored. Error(data) if
// the folder cannot be listed.
std::vector<std::string> image_files(const std::string& folder);

}  // namespace dp
