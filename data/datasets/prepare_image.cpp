#include "data/datasets/prepare_image.h"

#include <algorithm>

#include "data/formats/byte_reader.h"
#include "data/formats/rgb_image.h"
#include "dp/error.h"

namespace dp {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;
constexpr std::size_t kMaxBufferBytes = std::size_t{32} << 20;  // larger buffers are freed after each image

// Pillow's convert("L"): the luma of ITU-R BT.601 with 16 fractional bits. All three channels get it.
void make_grey(RgbImage& image) {
  for (std::size_t i = 0; i + 2 < image.pixels.size(); i += 3) {
    std::uint8_t* const pixel = image.pixels.data() + i;
    const std::uint32_t luma = pixel[0] * 19595u + pixel[1] * 38470u + pixel[2] * 7471u + 0x8000u;
    std::fill_n(pixel, 3, static_cast<std::uint8_t>(luma >> 16));
  }
}

}  // namespace

void require_readable_size(const std::string& path, std::uint64_t bytes) {
  if (bytes > kMaxFileBytes)
    throw undecodable(path,
                      "expected at most " + std::to_string(kMaxFileBytes) + " bytes, found " + std::to_string(bytes));
}

void read_image_file(const std::string& path, std::vector<std::uint8_t>& bytes) {
  FileReader file(path, "make it a readable image, or remove it");
  require_readable_size(path, *file.size());
  bytes.resize(*file.size());
  bytes.resize(file.read(bytes));
}

void require_image_input(const Shape& input) {
  if (input.rank() != 3 || (input[0] != 1 && input[0] != 3))
    throw Error(ErrorCode::usage,
                "images have one channel or three, but the network reads " + to_string(input) + "; give it tensors");
}

void ImageWorkplace::prepare(const std::optional<Resizing>& resizing, const Shape& input, std::span<std::uint8_t> out) {
  const std::int64_t rows = input[1], columns = input[2];
  const Interpolation by = resizing ? resizing->interpolation : Interpolation::bilinear;
  CentralCrop crop{columns, rows, {0, 0, columns, rows}};
  if (resizing && rows == columns) crop = central_crop(image.width, image.height, columns, resizing->crop_pct);
  const bool grey = input[0] == 1;
  if (grey) make_grey(image), planes_.resize(3 * out.size());
  const RgbView whole{image.pixels.data(), image.width, image.height, 3 * image.width};
  resizer.resize(whole, crop.width, crop.height, crop.window, by, grey ? std::span(planes_) : out);
  if (grey) std::copy_n(planes_.begin(), out.size(), out.begin());
}

void ImageWorkplace::shrink() {
  for (auto* buffer : {&file, &image.pixels})
    if (buffer->capacity() > kMaxBufferBytes) std::vector<std::uint8_t>().swap(*buffer);
}

RgbImage decode_image(std::span<const std::uint8_t> bytes, const std::string& name) {
  RgbImage image;
  decode_image(name, bytes, image);
  return image;
}

RgbImage read_image(const std::string& path) {
  std::vector<std::uint8_t> bytes;
  read_image_file(path, bytes);
  return decode_image(bytes, path);
}

Tensor prepare_image(const RgbImage& image, const Preprocessing& preprocessing, const Shape& input) {
  require_image_input(input);
  const auto needed = 3 * image.width * image.height;
  if (image.width < 1 || image.height < 1 || static_cast<std::int64_t>(image.pixels.size()) != needed)
    throw Error(ErrorCode::usage, "an image of " + std::to_string(image.width) + "x" + std::to_string(image.height) +
                                      " pixels has three bytes for each, but " + std::to_string(image.pixels.size()) +
                                      " are given");
  ImageWorkplace workplace;
  workplace.image = image;
  Tensor bytes(input, DType::u8);
  workplace.prepare(preprocessing.resizing, input, bytes.span<std::uint8_t>());
  return bytes;
}

}  // namespace dp
