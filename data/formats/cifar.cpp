#include "data/formats/cifar.h"

#include <array>
#include <utility>
#include <vector>

#include "data/formats/rgb_image.h"
#include "data/memory_dataset.h"

namespace dp {
namespace {

const Shape kImage{3, 32, 32};
constexpr std::size_t kImageBytes = 3 * 32 * 32;

struct Layout {
  explicit Layout(const CifarFormat& format)
      : label_bytes(format.classes.size()),
        record_bytes(label_bytes + kImageBytes),
        file_bytes(static_cast<std::uint64_t>(format.records) * record_bytes),
        rule("expected " + std::to_string(file_bytes) + " bytes, " + std::to_string(format.records) + " records of " +
             std::to_string(record_bytes)) {}

  std::size_t label_bytes, record_bytes;
  std::uint64_t file_bytes;
  std::string rule;
};

void check_size(ByteReader& file, const Layout& layout) {
  const std::uint64_t size = file.size().value_or(layout.file_bytes);
  if (size == layout.file_bytes) return;
  std::array<std::uint8_t, kRecognisedBytes> begin{};
  const std::size_t got = file.read(begin);
  if (const std::string kind = recognised(std::span(begin).first(got)); !kind.empty())
    throw damaged(file.name(), 0, "it is " + kind + "; " + layout.rule, kDownloadAgain);
  if (size < layout.file_bytes)
    throw damaged(file.name(), size, layout.rule + ", and the file ends here", kDownloadAgain);
  throw damaged(file.name(), layout.file_bytes, layout.rule + ", and more follow", kDownloadAgain);
}

void read_file(ByteReader& file, const CifarFormat& format, const Layout& layout, std::vector<std::uint8_t>& pixels,
               std::vector<std::int32_t>& labels) {
  std::vector<std::uint8_t> record(layout.record_bytes);
  for (std::uint64_t offset = 0; offset < layout.file_bytes; offset += record.size()) {
    const std::size_t got = file.read(record);
    if (got != record.size())
      throw damaged(file.name(), offset + got, layout.rule + ", and the file was truncated here while it was read",
                    kDownloadAgain);
    for (std::size_t i = 0; i < layout.label_bytes; ++i)
      if (record[i] >= format.classes[i])
        throw damaged(file.name(), offset + i,
                      "expected a label of 0 to " + std::to_string(format.classes[i] - 1) + ", found " +
                          std::to_string(record[i]),
                      kDownloadAgain);
    labels.push_back(record[layout.label_bytes - 1]);
    pixels.insert(pixels.end(), record.begin() + static_cast<std::ptrdiff_t>(layout.label_bytes), record.end());
  }
}

}  // namespace

std::shared_ptr<const Dataset> read_cifar(std::span<ByteReader* const> files, const CifarFormat& format,
                                          const Normalization& normalization, std::vector<std::string> names) {
  const Layout layout(format);
  for (ByteReader* const file : files) check_size(*file, layout);
  const std::size_t total = files.size() * static_cast<std::size_t>(format.records);
  std::vector<std::uint8_t> pixels;
  std::vector<std::int32_t> labels;
  pixels.reserve(total * kImageBytes);
  labels.reserve(total);
  for (ByteReader* file : files) read_file(*file, format, layout, pixels, labels);
  return std::make_shared<MemoryDataset>(kImage, format.classes.back(), normalization, std::move(pixels),
                                         std::move(labels), Augmentation{.padding = 4, .flip = true}, std::move(names));
}

}  // namespace dp
