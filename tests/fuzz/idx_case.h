// Runs one fuzz input through the IDX reader: two bytes with the size of the label file, the label file, the image
// file.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>

#include "data/formats/idx.h"

namespace dp::test {

enum class IdxVerdict { read, refused };

// Throws std::logic_error if the reader accepts invalid input. Passes on every exception of the reader except
// Error(data).
inline IdxVerdict run_idx_case(std::span<const std::uint8_t> input) {
  if (input.size() < 2) return IdxVerdict::refused;
  const std::size_t wanted = std::size_t{input[0]} << 8 | input[1];
  const auto files = input.subspan(2);
  const std::size_t label_bytes = wanted < files.size() ? wanted : files.size();
  MemoryReader labels("labels", files.first(label_bytes)), images("images", files.subspan(label_bytes));
  try {
    const auto dataset = read_idx(images, labels, {28, 28, 10}, {{0.1f}, {0.3f}});
    if (dataset->size() < 1) throw std::logic_error("an empty dataset was accepted");
    for (std::int64_t i = 0; i < dataset->size(); ++i)
      if (dataset->label(i) < 0 || dataset->label(i) > 9 || dataset->image(i).size() != 784)
        throw std::logic_error("a bad sample was accepted");
    return IdxVerdict::read;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data) throw;
    return IdxVerdict::refused;
  }
}

}  // namespace dp::test
