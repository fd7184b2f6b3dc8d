// Runs one fuzz input through the CIFAR reader. The first byte selects the edition and the number of records per file
// (1 to 8); the rest is one file.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>

#include "data/datasets/cifar.h"

namespace dp::test {

enum class CifarVerdict { read, refused };

// Throws std::logic_error if the reader accepts invalid input. Passes on every exception of the reader except
// Error(data).
inline CifarVerdict run_cifar_case(std::span<const std::uint8_t> input) {
  static constexpr std::int64_t kTen[] = {10}, kHundred[] = {20, 100};
  if (input.empty()) return CifarVerdict::refused;
  const bool hundred = input[0] & 1;
  const CifarFormat format{hundred ? std::span<const std::int64_t>(kHundred) : std::span<const std::int64_t>(kTen),
                           1 + (input[0] >> 1 & 7)};
  MemoryReader file("file", input.subspan(1));
  ByteReader* const files[] = {&file};
  try {
    const auto dataset = read_cifar(files, format, {{0, 0, 0}, {1, 1, 1}});
    if (dataset->size() != format.records) throw std::logic_error("another number of records was accepted");
    for (std::int64_t i = 0; i < dataset->size(); ++i)
      if (dataset->label(i) < 0 || dataset->label(i) >= dataset->classes() || dataset->image(i).size() != 3072)
        throw std::logic_error("a bad sample was accepted");
    return CifarVerdict::read;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data) throw;
    return CifarVerdict::refused;
  }
}

}  // namespace dp::test
