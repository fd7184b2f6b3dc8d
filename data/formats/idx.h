// Reader of labelled images in two IDX files (big-endian, the format of MNIST), plain or gzipped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/formats/byte_reader.h"
#include "dp/dataset.h"

namespace dp {

struct IdxFormat {
  std::int64_t rows, columns;
  std::int64_t classes;
};

// Checks magic, sizes and exact length before reading either body into memory. Gzipped files are therefore inflated
// twice. Error(data) with file and offset. `names`: of the classes, if they have any.
std::shared_ptr<const Dataset> read_idx(ByteReader& images, ByteReader& labels, const IdxFormat& format,
                                        const Normalization& normalization, std::vector<std::string> names = {});

}  // namespace dp
