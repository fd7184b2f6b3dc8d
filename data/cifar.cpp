#include "data/cifar.h"

#include <vector>

#include "data/memory_dataset.h"

namespace dp {
namespace {

const Shape kImage{3, 32, 32};
constexpr std::size_t kImageBytes = 3 * 32 * 32;

void read_file(ByteReader& file, const CifarFormat& format, std::vector<std::uint8_t>& pixels,
               std::vector<std::int32_t>& labels) {
  const std::size_t label_bytes = format.classes.size();
  const std::size_t record_bytes = label_bytes + kImageBytes;
  const std::uint64_t wanted = static_cast<std::uint64_t>(format.records) * record_bytes;
  const std::string rule = "expected " + std::to_string(wanted) + " bytes, " + std::to_string(format.records) +
                           " records of " + std::to_string(record_bytes);
  std::vector<std::uint8_t> record(record_bytes);
  for (std::uint64_t offset = 0; offset < wanted; offset += record_bytes) {
    const std::size_t got = file.read(record);
    if (got != record_bytes) throw damaged(file.name(), offset + got, rule + ", and the file ends here");
    for (std::size_t i = 0; i < label_bytes; ++i)
      if (record[i] >= format.classes[i])
        throw damaged(file.name(), offset + i,
                      "expected a label of 0 to " + std::to_string(format.classes[i] - 1) + ", found " +
                          std::to_string(record[i]));
    labels.push_back(record[label_bytes - 1]);
    pixels.insert(pixels.end(), record.begin() + static_cast<std::ptrdiff_t>(label_bytes), record.end());
  }
  if (file.read(std::span(record).first(1)) != 0) throw damaged(file.name(), wanted, rule + ", and more follow");
}

}  // namespace

std::shared_ptr<const Dataset> read_cifar(std::span<ByteReader* const> files, const CifarFormat& format,
                                          const Normalization& normalization) {
  const std::size_t total = files.size() * static_cast<std::size_t>(format.records);
  std::vector<std::uint8_t> pixels;
  std::vector<std::int32_t> labels;
  pixels.reserve(total * kImageBytes);
  labels.reserve(total);
  for (ByteReader* file : files) read_file(*file, format, pixels, labels);
  return std::make_shared<MemoryDataset>(kImage, format.classes.back(), normalization, std::move(pixels),
                                         std::move(labels), Augmentation{.padding = 4, .flip = true});
}

}  // namespace dp
