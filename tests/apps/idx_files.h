// Generated data sets of a few images.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "support/temporary_folder.h"

namespace dp::test {

inline std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift);
  return bytes;
}

inline std::string idx_images(std::uint32_t count) {
  std::string bytes = big_endian(0x803) + big_endian(count) + big_endian(28) + big_endian(28);
  for (std::uint32_t i = 0; i < count * 784; ++i) bytes += static_cast<char>(i * 7 + i / 784);
  return bytes;
}

inline std::string idx_labels(std::uint32_t count) {
  std::string bytes = big_endian(0x801) + big_endian(count);
  for (std::uint32_t i = 0; i < count; ++i) bytes += static_cast<char>(i % 10);
  return bytes;
}

inline std::string gzip(const std::string& bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) throw std::runtime_error("zlib");
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int status = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (status != Z_STREAM_END) throw std::runtime_error("zlib");
  return out;
}

constexpr const char* kTrainImages = "train-images-idx3-ubyte";
constexpr const char* kTrainLabels = "train-labels-idx1-ubyte";
constexpr const char* kTestImages = "t10k-images-idx3-ubyte";
constexpr const char* kTestLabels = "t10k-labels-idx1-ubyte";

// 64 training images, 40 test images.
inline void write_tiny_mnist(const std::string& folder) {
  write_text(folder + "/" + kTrainImages, idx_images(64));
  write_text(folder + "/" + kTrainLabels, idx_labels(64));
  write_text(folder + "/" + kTestImages, idx_images(40));
  write_text(folder + "/" + kTestLabels, idx_labels(40));
}

}  // namespace dp::test
