// Labelled images in two IDX files (big-endian, as MNIST has them), plain or gzip.
#pragma once

#include <cstdint>
#include <memory>

#include "data/formats/byte_reader.h"
#include "dp/dataset.h"

namespace dp {

struct IdxFormat {
  std::int64_t rows, columns;
  std::int64_t classes;
};

// Magic, sizes and exact length are checked before either body is read into memory; a packed file is inflated twice for
// that. Error(data) naming file and offset.
std::shared_ptr<const Dataset> read_idx(ByteReader& images, ByteReader& labels, const IdxFormat& format,
                                        const Normalization& normalization);

}  // namespace dp
