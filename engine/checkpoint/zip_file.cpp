#include "engine/checkpoint/zip_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/files.h"

// The records and their fields: APPNOTE.TXT of PKWARE, 4.3 and 4.5.3. All numbers are little-endian.

namespace dp {
namespace {

constexpr std::uint64_t kMostDirectory = std::uint64_t{16} << 20;
constexpr std::size_t kMostZipEntries = 100'000;
constexpr std::size_t kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20, kEntryBytes = 46, kHeaderBytes = 30;
constexpr std::uint32_t kAll32 = 0xffffffff;  // the value is in a field of 64 bits

template <typename Number>
Number field(std::string_view record, std::size_t at) {
  Number value;
  std::memcpy(&value, record.data() + at, sizeof value);
  return value;
}

std::string read_part(ByteSource& source, std::uint64_t offset, std::size_t size) {
  std::string text(size, '\0');
  source.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

[[noreturn]] void truncated(const ByteSource& source) {
  throw_data(source.name(), "the zip file is damaged or truncated: it has no directory at its end");
}

struct DirectoryRange {
  std::uint64_t begin = 0, bytes = 0, entries = 0;
};

// The end record is the last in the file, before a comment of up to 65,535 bytes.
DirectoryRange find_directory(ByteSource& source) {
  const std::uint64_t size = source.size();
  const auto tail_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(size, kEndBytes + 0xffff));
  const std::uint64_t tail_begin = size - tail_bytes;
  const std::string tail = read_part(source, tail_begin, tail_bytes);
  std::size_t end = tail.rfind("PK\5\6");
  while (end != std::string::npos &&
         (tail.size() - end < kEndBytes || field<std::uint16_t>(tail, end + 20) != tail.size() - end - kEndBytes))
    end = end == 0 ? std::string::npos : tail.rfind("PK\5\6", end - 1);
  if (end == std::string::npos) truncated(source);
  const std::string_view record = std::string_view(tail).substr(end, kEndBytes);
  DirectoryRange directory{field<std::uint32_t>(record, 16), field<std::uint32_t>(record, 12),
                           field<std::uint16_t>(record, 10)};
  std::uint64_t limit = tail_begin + end;
  const bool large = directory.begin == kAll32 || directory.bytes == kAll32 || directory.entries == 0xffff;
  if (large && limit >= kLocatorBytes + kEnd64Bytes) {
    const std::string locator = read_part(source, limit - kLocatorBytes, kLocatorBytes);
    const auto at = field<std::uint64_t>(locator, 8);
    if (locator.starts_with("PK\6\7")) {
      limit -= kLocatorBytes;
      if (at > limit - kEnd64Bytes) truncated(source);
      const std::string record64 = read_part(source, at, kEnd64Bytes);
      if (!record64.starts_with("PK\6\6")) truncated(source);
      directory = {field<std::uint64_t>(record64, 48), field<std::uint64_t>(record64, 40),
                   field<std::uint64_t>(record64, 32)};
      limit = at;
    }
  }
  if (directory.begin > limit || directory.bytes > limit - directory.begin) truncated(source);
  if (directory.bytes > kMostDirectory || directory.entries > kMostZipEntries)
    throw_data(source.name(), "the zip file has more than 100,000 entries, or a directory of more than 16 MiB");
  return directory;
}

// Replaces values by those of the extra field for large files.
bool read_large_values(std::string_view extra, ZipEntry& entry, std::uint64_t& compressed) {
  const bool wanted = entry.bytes == kAll32 || compressed == kAll32 || entry.header == kAll32;
  while (extra.size() >= 4) {
    const auto id = field<std::uint16_t>(extra, 0);
    const std::size_t bytes = field<std::uint16_t>(extra, 2);
    if (bytes > extra.size() - 4) return !wanted;
    std::string_view large = extra.substr(4, bytes);
    extra.remove_prefix(4 + bytes);
    if (id != 1) continue;
    for (std::uint64_t* const value : {&entry.bytes, &compressed, &entry.header}) {
      if (*value != kAll32) continue;
      if (large.size() < 8) return false;
      *value = field<std::uint64_t>(large, 0);
      large.remove_prefix(8);
    }
    return true;
  }
  return !wanted;
}

// Takes an entry from the front of `rest`.
std::pair<std::string, ZipEntry> next_entry(std::string_view& rest, const std::string& file) {
  if (rest.size() < kEntryBytes || !rest.starts_with("PK\1\2")) throw_data(file, "the directory of the zip is damaged");
  const std::size_t name_bytes = field<std::uint16_t>(rest, 28), extra_bytes = field<std::uint16_t>(rest, 30);
  const std::size_t all = kEntryBytes + name_bytes + extra_bytes + field<std::uint16_t>(rest, 32);
  if (rest.size() < all) throw_data(file, "the directory of the zip is damaged");
  std::string name(rest.substr(kEntryBytes, name_bytes));
  ZipEntry entry{field<std::uint32_t>(rest, 42), field<std::uint32_t>(rest, 24), field<std::uint32_t>(rest, 16)};
  std::uint64_t compressed = field<std::uint32_t>(rest, 20);
  const std::string what = "the entry '" + excerpt(name) + "' of the zip ";
  if ((field<std::uint16_t>(rest, 8) & 1) != 0) throw_data(file, what + "is encrypted");
  if (const auto method = field<std::uint16_t>(rest, 10); method != 0)
    throw_data(file, what + fmt::format("is compressed (method {}); torch.save stores entries", method));
  if (!read_large_values(rest.substr(kEntryBytes + name_bytes, extra_bytes), entry, compressed) ||
      compressed != entry.bytes)
    throw_data(file, what + "has two sizes; the file is damaged");
  rest.remove_prefix(all);
  return {std::move(name), entry};
}

}  // namespace

ZipDirectory read_zip_directory(ByteSource& source) {
  const DirectoryRange found = find_directory(source);
  const std::string text = read_part(source, found.begin, found.bytes);
  ZipDirectory entries;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;  // begin and end of an entry with its header
  std::string_view rest = text;
  for (std::uint64_t i = 0; i < found.entries; ++i) {
    auto [name, entry] = next_entry(rest, source.name());
    std::uint64_t end = 0;
    if (__builtin_add_overflow(entry.header, kHeaderBytes + name.size(), &end) ||
        __builtin_add_overflow(end, entry.bytes, &end) || end > found.begin)
      throw_data(source.name(), "the entry '" + excerpt(name) + "' of the zip ends after the file's data");
    ranges.emplace_back(entry.header, end);
    const auto [at, is_new] = entries.emplace(std::move(name), entry);
    if (!is_new) throw_data(source.name(), "has two entries named '" + excerpt(at->first) + "'");
  }
  std::ranges::sort(ranges);
  for (std::size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i].first < ranges[i - 1].second) throw_data(source.name(), "entries of the zip overlap");
  return entries;
}

std::uint64_t checked_zip_entry(ByteSource& source, const std::string& name, const ZipEntry& entry) {
  const std::string what = "the entry '" + excerpt(name) + "' of the zip ";
  const std::string header = read_part(source, entry.header, kHeaderBytes + name.size());
  if (!header.starts_with("PK\3\4") || field<std::uint16_t>(header, 26) != name.size() || !header.ends_with(name))
    throw_data(source.name(), what + "is not where the directory has it; the file is damaged");
  const std::uint64_t begin = entry.header + header.size() + field<std::uint16_t>(header, 28);
  if (begin > source.size() || entry.bytes > source.size() - begin) throw_data(source.name(), what + "is truncated");
  if (entry.crc == 0) return begin;  // torch.serialization.set_crc32_options(False)
  std::vector<std::byte> block(std::min<std::uint64_t>(entry.bytes, std::uint64_t{1} << 20));
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < entry.bytes;) {
    const std::span<std::byte> part =
        std::span(block).first(static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), entry.bytes - done)));
    source.read(begin + done, part);
    crc = static_cast<std::uint32_t>(
        ::crc32(crc, reinterpret_cast<const unsigned char*>(part.data()), static_cast<unsigned>(part.size())));
    done += part.size();
  }
  if (crc != entry.crc) throw_data(source.name(), what + "does not have its checksum; the file is damaged");
  return begin;
}

}  // namespace dp
