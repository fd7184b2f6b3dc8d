// CIFAR-10 and CIFAR-100: reads their binary format, and finds and opens their files.
#include "data/datasets/cifar.h"

#include <array>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "data/datasets/known_files.h"
#include "data/formats/rgb_image.h"
#include "data/memory_dataset.h"
#include "dp/error.h"
#include "dp/shell.h"

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
                                         std::move(labels), Augmentation{.padding = 4, .flip = Flip::random},
                                         std::move(names));
}

namespace {

namespace fs = std::filesystem;

struct Edition {
  const char* name;
  const char* folder;  // of the unpacked archive
  std::vector<std::string> train, test;
  std::vector<std::int64_t> classes;
  std::int64_t train_records, test_records;  // per file
  Normalization normalization;
  std::vector<std::string> class_names;
};

const Edition& ten() {
  static const Edition edition{
      "cifar10",
      "cifar-10-batches-bin",
      {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
      {"test_batch.bin"},
      {10},
      10000,
      10000,
      {{0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}},
      cifar10_names()};
  return edition;
}

const Edition& hundred() {
  static const Edition edition{"cifar100",      "cifar-100-binary",
                               {"train.bin"},   {"test.bin"},
                               {20, 100},       50000,
                               10000,           {{0.50707f, 0.48655f, 0.44092f}, {0.26733f, 0.25644f, 0.27615f}},
                               cifar100_names()};
  return edition;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;  // opening the file reports the reason
  return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}

Error missing(const Edition& edition, const std::string& folder, const std::string& what) {
  const std::string name = edition.name;
  return Error(ErrorCode::data, name + ": " + what + "; download them with `dp_train fetch " + name + " --data-path " +
                                    path_argument(folder) +
                                    "`, set --data-path to their folder, or train on random images: --dataset "
                                    "synthetic --input 3,32,32 --classes " +
                                    std::to_string(edition.classes.back()));
}

fs::path find_place(const Edition& edition, const std::string& folder) {
  const fs::path places[] = {folder, fs::path(folder) / edition.folder};
  std::string incomplete;  // the first place that has some of the files
  for (const fs::path& place : places) {
    std::string lacking;
    std::size_t found = 0;
    for (const auto* names : {&edition.train, &edition.test})
      for (const std::string& name : *names) {
        if (is_there(place / name))
          ++found;
        else if (lacking.empty())
          lacking = name;
      }
    if (found > 0 && lacking.empty()) return place;
    if (found > 0 && incomplete.empty()) incomplete = place.string() + " lacks " + lacking;
  }
  std::error_code ignored;
  const bool is_file = fs::is_regular_file(places[0], ignored);
  const std::string usable = is_file ? folder_of(places[0]) : folder;
  const FoundInstead instead = cifar_found_instead({usable, places[1]}, edition.name);
  std::string what = incomplete;
  if (what.empty())
    what = is_file
               ? folder + " is a file, not a folder"
               : "no files in " + places[0].string() +
                     (fs::is_directory(places[0], ignored) ? "" : " (no such folder)") + " or " + places[1].string();
  if (!instead.archive.empty())
    throw Error(ErrorCode::data, std::string(edition.name) + ": " + what + "; " + instead.archive +
                                     " is not unpacked: run `tar -xf " + path_argument(instead.archive) + " -C " +
                                     path_argument(folder_of(instead.archive)) +
                                     "`, and set --data-path to that folder");
  throw missing(edition, usable, what + instead.text);
}

std::shared_ptr<const Dataset> open_part(const Edition& edition, const fs::path& place,
                                         const std::vector<std::string>& names, std::int64_t records) {
  std::vector<std::unique_ptr<FileReader>> files;
  std::vector<ByteReader*> readers;
  for (const std::string& name : names) {
    files.push_back(std::make_unique<FileReader>((place / name).string(), "give a readable file"));
    readers.push_back(files.back().get());
  }
  return read_cifar(readers, {edition.classes, records}, edition.normalization, edition.class_names);
}

DatasetPair open_pair(const Edition& edition, const std::string& folder) {
  const fs::path place = find_place(edition, folder);
  return {open_part(edition, place, edition.train, edition.train_records),
          open_part(edition, place, edition.test, edition.test_records)};
}

}  // namespace

namespace datasets {

DatasetPair cifar10(const std::string& folder) { return open_pair(ten(), folder); }

DatasetPair cifar100(const std::string& folder) { return open_pair(hundred(), folder); }

}  // namespace datasets

}  // namespace dp
