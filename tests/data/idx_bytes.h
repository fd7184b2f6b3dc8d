// IDX files in memory, plain and gzipped.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace dp::test {

using Bytes = std::vector<std::uint8_t>;

inline void put_number(Bytes& bytes, std::uint32_t value) {
  for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<std::uint8_t>(value >> shift));
}

// `count` images of 28x28; byte k of the body is k modulo 251.
inline Bytes idx_images(std::uint32_t count, std::uint32_t rows = 28, std::uint32_t columns = 28) {
  Bytes bytes;
  for (const std::uint32_t number : {0x803u, count, rows, columns}) put_number(bytes, number);
  for (std::uint32_t k = 0; k < count * rows * columns; ++k) bytes.push_back(static_cast<std::uint8_t>(k % 251));
  return bytes;
}

// Labels 0, 1, .. 9, 0, ..
inline Bytes idx_labels(std::uint32_t count) {
  Bytes bytes;
  for (const std::uint32_t number : {0x801u, count}) put_number(bytes, number);
  for (std::uint32_t k = 0; k < count; ++k) bytes.push_back(static_cast<std::uint8_t>(k % 10));
  return bytes;
}

inline Bytes gzip(const Bytes& plain) {
  z_stream stream{};
  if (deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("deflateInit2");
  Bytes packed(deflateBound(&stream, plain.size()));
  stream.next_in = const_cast<Bytef*>(plain.data());
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = packed.data();
  stream.avail_out = static_cast<uInt>(packed.size());
  if (deflate(&stream, Z_FINISH) != Z_STREAM_END) throw std::runtime_error("deflate");
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

}  // namespace dp::test
