// Labelled colour images in the binary records of CIFAR-10 and CIFAR-100.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "data/formats/byte_reader.h"
#include "dp/dataset.h"

namespace dp {

// A record is its labels, one byte each, then 32x32 bytes of red, of green, of blue. The last label is the one that
// counts: CIFAR-100's coarse label stands before the fine one.
struct CifarFormat {
  std::span<const std::int64_t> classes;  // of each label
  std::int64_t records;                   // in each file, exactly
};

// All files as one dataset, in their order. Their sizes are checked before anything is read. Error(data) naming file and
// byte.
std::shared_ptr<const Dataset> read_cifar(std::span<ByteReader* const> files, const CifarFormat& format,
                                          const Normalization& normalization);

}  // namespace dp
