#include "engine/checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "data/formats/file_kind.h"
#include "engine/base/fault.h"
#include "engine/checkpoint/safetensors_sax.h"

namespace dp {
namespace {

// The JSON parser buffers the current token and copies it for error messages. A limit on the distance between two
// quotation marks limits the token, and so the parser's memory, for any header length.
constexpr std::size_t kLongestToken = std::size_t{1} << 20;

void check_text(std::string_view json, const std::string& path) {
  if (json.empty() || json.front() != '{')
    throw_data(path, "its header does not begin with '{'; it is not a safetensors file");
  std::size_t token_begin = 0;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const auto c = static_cast<unsigned char>(json[i]);
    if (c < 32 && c != '\n' && c != '\r' && c != '\t')  // the parser treats a zero byte as the end
      throw_data(path,
                 "its header contains the control character " + std::to_string(c) + " at byte " + std::to_string(i));
    if (c == '"') token_begin = i;
    if (c == '\\') ++i;
    if (i - token_begin > kLongestToken) throw_data(path, "its header contains a token of more than 1 MiB");
  }
}

// Bytes of `entry` in the file; nothing if they exceed 64 bits.
std::optional<std::uint64_t> stored_bytes(const TensorEntry& entry) {
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(entry.shape.numel()), entry.stored->width, &bytes))
    return std::nullopt;
  return bytes;
}

void check_layout(std::vector<TensorEntry>& tensors, std::uint64_t data_bytes, const std::string& path) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < tensors.size(); ++i)
    if (tensors[i].name == tensors[i - 1].name)
      throw_data(path, "has two tensors named '" + excerpt(tensors[i].name) + "'");
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t expected = 0;
  for (const TensorEntry& entry : tensors) {
    const std::string tensor = "tensor '" + excerpt(entry.name) + "' ";
    const std::string range = "[" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + ")";
    if (entry.begin > entry.end) throw_data(path, tensor + "has data_offsets " + range + " in descending order");
    if (entry.end > data_bytes)
      throw_data(path, tensor + "has data_offsets " + range + " beyond the " + std::to_string(data_bytes) +
                           " bytes of data; the file is truncated");
    const std::optional<std::uint64_t> needs = stored_bytes(entry);
    if (!needs || *needs != entry.end - entry.begin)
      throw_data(path, tensor + "of shape " + to_string(entry.shape) + " does not match its data_offsets " + range);
    if (entry.begin != expected)
      throw_data(path, tensor + "begins at byte " + std::to_string(entry.begin) + " of the data, expected " +
                           std::to_string(expected) + ": a gap or an overlap");
    expected = entry.end;
  }
  if (expected != data_bytes)
    throw_data(
        path, "has " + std::to_string(data_bytes) + " bytes of data, but its tensors take " + std::to_string(expected));
}

bool unprintable(char32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) ||                         // C0, DEL, C1
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);  // line separators and bidirectional controls
}

}  // namespace

std::string fault_of_tensor_name(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.size() > 1024) return "is longer than 1,024 bytes";
  if (name.find_first_of("/\\") != std::string_view::npos) return "contains a slash";
  if (name.front() == '.' || name.find("..") != std::string_view::npos) return "begins with a dot or contains '..'";
  for (std::size_t i = 0; i < name.size(); ++i) {  // the JSON parser has validated the UTF-8
    const auto at = [&](std::size_t k) -> char32_t { return i + k < name.size() ? name[i + k] & 0x3fu : 0u; };
    const auto lead = static_cast<unsigned char>(name[i]);
    const char32_t c = lead < 0x80             ? lead
                       : (lead & 0xe0) == 0xc0 ? (lead & 0x1fu) << 6 | at(1)
                       : (lead & 0xf0) == 0xe0 ? (lead & 0x0fu) << 12 | at(1) << 6 | at(2)
                                               : 0xfffd;  // a continuation byte, or a character beyond U+FFFF
    if (unprintable(c)) return "contains a control character";
  }
  return {};
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes, const std::string& path) {
  check_text(json, path);
  SafetensorsHeader header;
  SafetensorsSax sax(header, path);
  nlohmann::json::sax_parse(json.begin(), json.end(), &sax);  // throws Error; never returns false
  check_layout(header.tensors, data_bytes, path);
  return header;
}

SafetensorsHeader read_safetensors_header(ByteSource& source) {
  const std::uint64_t size = source.size();
  std::array<std::uint8_t, 16> begin{};
  if (size >= begin.size()) source.read(0, std::as_writable_bytes(std::span(begin)));
  // A valid file can begin with the same bytes, which encode the length of its header. So `kind` counts only if that
  // length is impossible.
  const std::string kind = recognised(begin);
  if (size < 8) throw_data(source.name(), "has " + std::to_string(size) + " bytes; a safetensors file has at least 8");
  std::uint64_t length = 0;
  source.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > std::min(kLongestHeader, size - 8))
    throw_data(source.name(),
               kind.empty() ? fmt::format("it is truncated, or not a safetensors file: its header would {}",
                                          length > size - 8 ? "end after the file"
                                                            : fmt::format("have more than {} bytes", kLongestHeader))
                            : "it is " + kind + "; safetensors.torch.save_file writes weights files");
  std::string json(length, '\0');
  source.read(8, std::as_writable_bytes(std::span(json)));
  SafetensorsHeader header = parse_safetensors_header(json, size - 8 - length, source.name());
  header.data_begin = 8 + length;
  return header;
}

}  // namespace dp
