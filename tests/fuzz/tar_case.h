// One fuzz input as the only tar file of a data set "imageshards".
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <span>
#include <stdexcept>

#include "data/formats/tar_index.h"
#include "dp/dataset.h"
#include "support/temporary_folder.h"

namespace dp::test {

// Corrects the checksums of headers that a mutation changed. Blocks without the magic word of a header stay.
inline void correct_checksums(std::span<std::uint8_t> archive) {
  for (; archive.size() >= 512; archive = archive.subspan(512)) {
    if (std::memcmp(archive.data() + 257, "ustar", 5) != 0) continue;
    const auto sum_field = archive.subspan(148, 8);
    std::ranges::fill(sum_field, std::uint8_t{' '});
    char digits[8];
    std::snprintf(digits, sizeof digits, "%06o", std::accumulate(archive.begin(), archive.begin() + 512, 0u));
    std::copy_n(digits, 7, sum_field.begin());
  }
}

enum class TarVerdict { read, refused };

// Throws std::logic_error if the reader accepts invalid input. Passes on every exception of the reader except
// Error(data).
inline TarVerdict run_tar_case(std::span<const std::uint8_t> input) {
  static const TemporaryFolder folder;
  folder.write("train/0.tar", input);
  try {
    for (const TarEntry& entry : list_tar(folder / "train/0.tar"))
      if (entry.begin > input.size() || entry.bytes > input.size() - entry.begin)
        throw std::logic_error("a file beyond the end of the archive was accepted");
    const auto dataset = datasets::image_shards_train(folder.path(), 8);
    if (dataset->size() < 1) throw std::logic_error("an empty data set was accepted");
    for (std::int64_t i = 0; i < dataset->size(); ++i)
      if (dataset->label(i) < 0 || dataset->label(i) >= dataset->classes() || dataset->sample_id(i).empty())
        throw std::logic_error("a bad sample was accepted");
    return TarVerdict::read;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data) throw;
    return TarVerdict::refused;
  }
}

}  // namespace dp::test
