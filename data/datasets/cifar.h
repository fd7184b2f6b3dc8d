// Reader of the binary format of CIFAR-10 and CIFAR-100.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/formats/byte_reader.h"
#include "dp/dataset.h"

namespace dp {

// A record: the labels, one byte each, then 32x32 bytes each of red, green and blue. The last label is used: CIFAR-100
// stores the coarse label before the fine one.
struct CifarFormat {
  std::span<const std::int64_t> classes;  // number of classes of each label
  std::int64_t records;                   // exact number per file
};

// Reads all files, in order, into one dataset. Checks all sizes first. Error(data) with file and byte offset. `names`:
// of the classes, if they have any.
std::shared_ptr<const Dataset> read_cifar(std::span<ByteReader* const> files, const CifarFormat& format,
                                          const Normalization& normalization, std::vector<std::string> names = {});

}  // namespace dp
