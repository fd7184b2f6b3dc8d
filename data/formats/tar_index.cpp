#include "data/formats/tar_index.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include "data/formats/byte_reader.h"
#include "dp/error.h"

namespace dp {
namespace {

constexpr std::uint64_t kBlock = 512;
constexpr std::uint64_t kMostHeaderBytes = 1 << 20;  // of the contents of a header for the next file

using Block = std::array<std::uint8_t, kBlock>;

// Returns the text of a field, which ends at its first zero byte.
std::string text_in(const Block& block, std::size_t at, std::size_t length) {
  const std::uint8_t* const begin = block.data() + at;
  return {begin, std::find(begin, begin + length, 0)};
}

// Reads an octal number, or one of GNU's in base 256.
std::optional<std::uint64_t> number_in(const Block& block, std::size_t at, std::size_t length) {
  std::uint64_t value = 0;
  if (block[at] == 0x80) {
    for (std::size_t i = at + 1; i < at + length; ++i) {
      if (value >> 55) return std::nullopt;
      value = value << 8 | block[i];
    }
    return value;
  }
  std::string text = text_in(block, at, length);
  text.erase(0, text.find_first_not_of(' '));
  text.erase(text.find_last_not_of(' ') + 1);
  for (const char digit : text) {
    if (digit < '0' || digit > '7') return std::nullopt;
    value = value * 8 + static_cast<std::uint64_t>(digit - '0');
  }
  return value;
}

constexpr std::size_t kSize = 124, kSum = 148, kKind = 156, kMagic = 257, kPrefix = 345;

bool sums_up(const Block& block) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kBlock; ++i) sum += i >= kSum && i < kSum + 8 ? std::uint64_t{' '} : block[i];
  return number_in(block, kSum, 8) == sum;
}

// Headers of the kinds x and L describe the file behind them.
struct Ahead {
  std::string name;
  std::optional<std::uint64_t> bytes;

  // Records "<length> <key>=<value>\n". Returns false if they are malformed.
  bool read_pax(std::string_view text) {
    while (!text.empty()) {
      const std::size_t space = text.find(' ');
      std::size_t length = 0;
      for (std::size_t i = 0; i < space && i < text.size(); ++i) {
        if (text[i] < '0' || text[i] > '9' || length > kMostHeaderBytes) return false;
        length = length * 10 + static_cast<std::size_t>(text[i] - '0');
      }
      if (space == std::string_view::npos || length <= space + 1 || length > text.size()) return false;
      const std::string_view record = text.substr(space + 1, length - space - 2);
      const std::size_t equals = record.find('=');
      if (equals == std::string_view::npos || text[length - 1] != '\n') return false;
      const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
      if (key == "path") name = value;
      if (key == "size" && !read_bytes(value)) return false;
      text.remove_prefix(length);
    }
    return true;
  }

 private:
  bool read_bytes(std::string_view digits) {
    std::uint64_t value = 0;
    for (const char digit : digits) {
      if (digit < '0' || digit > '9' || value >> 59) return false;
      value = value * 10 + static_cast<std::uint64_t>(digit - '0');
    }
    bytes = value;
    return !digits.empty();
  }
};

constexpr const char* kRemedy = "make it a readable tar archive, not compressed, or remove it";

}  // namespace

PieceReader::PieceReader(const std::string& path)
    : path_(path), size_(*FileReader(path, kRemedy).size()), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) throw Error(ErrorCode::data, path + ": opening it failed (" + std::strerror(errno) + ")");
}
PieceReader::~PieceReader() { ::close(descriptor_); }

void PieceReader::read(std::uint64_t begin, std::span<std::uint8_t> out) const {
  for (std::size_t done = 0; done < out.size();) {
    const ssize_t got = ::pread(descriptor_, out.data() + done, out.size() - done, static_cast<off_t>(begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw bad(begin + done, "the data end too early");
    done += static_cast<std::size_t>(got);
  }
}
Error PieceReader::bad(std::uint64_t at, const std::string& what) const { return damaged(path_, at, what, kRemedy); }

std::vector<TarEntry> list_tar(const std::string& path) {
  const PieceReader file(path);
  std::vector<TarEntry> entries;
  Ahead ahead;
  Block block;
  for (std::uint64_t at = 0; at + kBlock <= file.size();) {
    file.read(at, block);
    if (std::ranges::all_of(block, [](std::uint8_t byte) { return byte == 0; })) break;  // the end
    if (!sums_up(block)) throw file.bad(at, "expected a header of a tar archive");
    const std::optional<std::uint64_t> stated = number_in(block, kSize, 12);
    const char kind = static_cast<char>(block[kKind]);
    const bool of_next = kind == 'x' || kind == 'L' || kind == 'g' || kind == 'K';
    const bool is_file = kind == '0' || kind == '\0' || kind == '7', has_contents = kind < '1' || kind > '6';
    const std::uint64_t bytes = !has_contents ? 0 : ahead.bytes && !of_next ? *ahead.bytes : stated.value_or(~0ull);
    const std::uint64_t begin = at + kBlock;
    if (!stated || bytes > file.size() - begin) throw file.bad(at, "a file that ends behind the archive");
    at = begin + (bytes + kBlock - 1) / kBlock * kBlock;
    if (kind == 'x' || kind == 'L') {
      if (bytes > kMostHeaderBytes) throw file.bad(begin, "a name of more than 1 MiB");
      std::string text(bytes, '\0');
      file.read(begin, {reinterpret_cast<std::uint8_t*>(text.data()), bytes});
      if (kind == 'L')
        ahead.name = text.c_str();
      else if (!ahead.read_pax(text))
        throw file.bad(begin, "expected records of a pax header");
      continue;
    }
    if (of_next) continue;
    std::string name = ahead.name;
    if (name.empty()) {
      name = text_in(block, 0, 100);
      const std::string prefix = block[kMagic + 5] == 0 ? text_in(block, kPrefix, 155) : "";  // GNU's is no prefix
      if (!prefix.empty()) name = prefix + "/" + name;
    }
    if (is_file) entries.push_back({name, begin, bytes});
    ahead = {};
  }
  return entries;
}

}  // namespace dp
