// Reader of labelled images in two IDX files (big-endian, the format of MNIST), plain or gzipped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/formats/byte_reader.h"
#include "dp/dataset.h"

namespace dp {

inline constexpr std::uint32_t kImageMagic = 0x00000803;  // unsigned bytes, three dimensions
inline constexpr std::uint32_t kLabelMagic = 0x00000801;  // unsigned bytes, one dimension

// "float32 in 2 dimensions", from the magic number of an IDX file; empty for another number.
std::string idx_description(std::uint32_t magic);

struct IdxFormat {
  std::int64_t rows, columns;
  std::int64_t classes;
};

// Checks magic, sizes and exact length before reading either body into memory. Gzipped files are therefore inflated
// twice. Error(data) with file and offset. `names`: of the classes, if they have any.
std::shared_ptr<const Dataset> read_idx(ByteReader& images, ByteReader& labels, const IdxFormat& format,
                                        const Normalization& normalization, std::vector<std::string> names = {});

}  // namespace dp
