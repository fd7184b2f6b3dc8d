#include "data/formats/idx.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "data/formats/byte_reader.h"
#include "data/formats/rgb_image.h"
#include "data/memory_dataset.h"

namespace dp {
namespace {

constexpr std::uint64_t kCountAt = 4;  // offset of the count in the header

std::string hex(std::uint32_t value) {
  std::array<char, 11> text;
  std::snprintf(text.data(), text.size(), "0x%08x", value);
  return text.data();
}

constexpr const char* kOtherData =
    "give the files of MNIST or Fashion-MNIST, lay the images out for --dataset imagefolder, or train without them: "
    "--dataset digits";

// The number, and what it says.
std::string magic_text(std::uint32_t magic, bool images) {
  const std::string text = hex(magic);
  if (magic == (images ? kLabelMagic : kImageMagic)) return text + (images ? ", that of labels" : ", that of images");
  if (const std::string known = idx_description(magic); !known.empty()) return text + ", " + known;
  const std::string swapped = idx_description(__builtin_bswap32(magic));
  return swapped.empty() ? text : text + ", " + swapped + " with the bytes in reverse order";
}

std::uint64_t host_memory() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// One of the two files. Inflates it if it is gzipped.
class IdxFile {
 public:
  explicit IdxFile(ByteReader& file) : bytes_(&file) {
    std::array<std::uint8_t, 2> begin{};
    file.rewind();
    const bool packed = file.read(begin) == begin.size() && begin[0] == 0x1f && begin[1] == 0x8b;
    file.rewind();
    std::array<std::uint8_t, 16> head{};
    if (!packed && file.read(head) == head.size())
      if (const std::string kind = recognised(head); !kind.empty()) throw damaged(file.name(), 0, "it is " + kind);
    file.rewind();
    if (packed) bytes_ = &gzip_.emplace(file);
  }

  Error wrong(std::uint64_t offset, const std::string& what) const { return damaged(bytes_->name(), offset, what); }
  // For a file that is not damaged, but of another data set.
  Error foreign(std::uint64_t offset, const std::string& what) const {
    return damaged(bytes_->name(), offset, what, kOtherData);
  }

  // Reads the next big-endian number of a header of `header` bytes.
  std::uint32_t number(std::uint64_t header) {
    std::array<std::uint8_t, 4> word{};
    const std::size_t got = bytes_->read(word);
    if (got != word.size())
      throw wrong(offset_ + got, "the file ends within its header of " + std::to_string(header) + " bytes");
    offset_ += word.size();
    return std::uint32_t{word[0]} << 24 | std::uint32_t{word[1]} << 16 | std::uint32_t{word[2]} << 8 | word[3];
  }

  void expect(std::uint32_t wanted, std::uint64_t header, const char* what) {
    const std::uint64_t at = offset_;
    const std::uint32_t found = number(header);
    if (found == wanted) return;
    const bool magic = at == 0;
    throw foreign(at, std::string("expected ") + what + " " + (magic ? hex(wanted) : std::to_string(wanted)) +
                          ", found " + (magic ? magic_text(found, wanted == kImageMagic) : std::to_string(found)));
  }

  std::uint32_t count(std::uint64_t header, const char* of) {
    const std::uint64_t at = offset_;
    const std::uint32_t found = number(header);
    if (found == 0) throw wrong(at, std::string("expected at least one ") + of + ", found 0");
    return found;
  }

  // Checks that exactly `body` bytes follow the header and fit into memory. Inflates a gzipped file to count them,
  // without storing the result.
  void check_length(std::uint64_t body) {
    const std::optional<std::uint64_t> size = bytes_->size();
    if (size) require_length(body, *size - offset_);
    if (body > host_memory())
      throw wrong(kCountAt, "expected a count whose " + std::to_string(body) + " bytes fit into this machine's " +
                                std::to_string(host_memory()) + " bytes of memory");
    if (!size) require_length(body, inflated_bytes(body));
  }

  // Reads the body. check_length(size) must have passed.
  std::vector<std::uint8_t> body(std::uint64_t size) {
    bytes_->rewind();
    std::array<std::uint8_t, 16> header;
    bytes_->read(std::span(header).first(offset_));
    std::vector<std::uint8_t> content(size);
    const std::size_t got = bytes_->read(content);
    if (got != size) throw wrong(offset_ + got, "the file became shorter while it was read");
    return content;
  }

  std::uint64_t header_bytes() const { return offset_; }

 private:
  void require_length(std::uint64_t body, std::uint64_t found) const {
    if (found == body) return;
    const std::string wanted = "expected " + std::to_string(offset_ + body) + " bytes, as the count in its header says";
    if (found < body) throw wrong(offset_ + found, wanted + ", and the file ends here");
    throw wrong(offset_ + body, wanted + ", and more follow");
  }

  // Counts the bytes after the header. Stops once there are more than `limit`.
  std::uint64_t inflated_bytes(std::uint64_t limit) {
    std::vector<std::uint8_t> piece(1 << 16);
    std::uint64_t seen = 0;
    for (std::size_t got = piece.size(); got == piece.size() && seen <= limit; seen += got) got = bytes_->read(piece);
    return seen;
  }

  ByteReader* bytes_;
  std::optional<GzipReader> gzip_;
  std::uint64_t offset_ = 0;  // of the next header number
};

}  // namespace

std::string idx_description(std::uint32_t magic) {
  constexpr std::array<std::pair<std::uint32_t, const char*>, 6> kTypes{{{0x08, "unsigned bytes"},
                                                                         {0x09, "signed bytes"},
                                                                         {0x0b, "int16"},
                                                                         {0x0c, "int32"},
                                                                         {0x0d, "float32"},
                                                                         {0x0e, "float64"}}};
  const std::uint32_t dimensions = magic & 0xff;
  if (dimensions < 1 || dimensions > 4) return "";
  for (const auto& [type, name] : kTypes)
    if (magic >> 8 == type)
      return std::string(name) + " in " + std::to_string(dimensions) + (dimensions == 1 ? " dimension" : " dimensions");
  return "";
}

std::shared_ptr<const Dataset> read_idx(ByteReader& images, ByteReader& labels, const IdxFormat& format,
                                        const Normalization& normalization, std::vector<std::string> names) {
  constexpr std::uint64_t kLabelHeader = 8, kImageHeader = 16;
  IdxFile label_file(labels);
  label_file.expect(kLabelMagic, kLabelHeader, "the magic number of labels");
  const std::uint32_t label_count = label_file.count(kLabelHeader, "label");

  IdxFile image_file(images);
  image_file.expect(kImageMagic, kImageHeader, "the magic number of images");
  const std::uint32_t count = image_file.count(kImageHeader, "image");
  image_file.expect(static_cast<std::uint32_t>(format.rows), kImageHeader, "the row count");
  image_file.expect(static_cast<std::uint32_t>(format.columns), kImageHeader, "the column count");

  const std::uint64_t pixels = std::uint64_t{count} * static_cast<std::uint64_t>(format.rows * format.columns);
  label_file.check_length(label_count);
  image_file.check_length(pixels);
  if (count != label_count)
    throw image_file.wrong(kCountAt, "expected " + std::to_string(label_count) + " images, as many as labels in " +
                                         labels.name() + ", found " + std::to_string(count));

  const std::vector<std::uint8_t> raw_labels = label_file.body(label_count);
  for (std::size_t i = 0; i < raw_labels.size(); ++i)
    if (raw_labels[i] >= format.classes)
      throw label_file.foreign(label_file.header_bytes() + i,
                               "expected a label of 0 to " + std::to_string(format.classes - 1) + ", found " +
                                   std::to_string(raw_labels[i]) + ", as in other sets of this format (EMNIST)");
  return std::make_shared<MemoryDataset>(
      Shape{1, format.rows, format.columns}, format.classes, normalization, image_file.body(pixels),
      std::vector<std::int32_t>(raw_labels.begin(), raw_labels.end()), Augmentation{}, std::move(names));
}

}  // namespace dp
