// Reads image files and makes the bytes of a network's input of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/augment/crops.h"
#include "dp/image.h"

namespace dp {

// Error(data) for files of more than 256 MiB.
void require_readable_size(const std::string& path, std::uint64_t bytes);
void read_image_file(const std::string& path, std::vector<std::uint8_t>& bytes);

// Error(usage) unless it is (1,H,W) or (3,H,W).
void require_image_input(const Shape& input);

// Reusable buffers of one thread.
struct ImageWorkplace {
  std::vector<std::uint8_t> file;
  RgbImage image;
  Resizer resizer;

  // Makes the planes of an evaluation's image of `image`: see prepare_image(). Changes `image` if the input is grey.
  void prepare(const std::optional<Resizing>& resizing, const Shape& input, std::span<std::uint8_t> out);
  void shrink();  // frees large buffers

 private:
  std::vector<std::uint8_t> planes_;
};

}  // namespace dp
