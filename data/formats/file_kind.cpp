#include "data/formats/file_kind.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace dp {

std::string recognised(std::span<const std::uint8_t> begin) {
  std::string text(begin.begin(), begin.end());
  const auto starts = [&](std::string_view bytes) { return text.starts_with(bytes); };
  using namespace std::string_view_literals;
  if (starts("PK\x03\x04"sv)) return "a zip archive, such as torch.save writes";
  if (starts("\x80\x02"sv) || starts("\x80\x03"sv) || starts("\x80\x04"sv) || starts("\x80\x05"sv))
    return "a Python pickle, such as older torch.save writes";
  if (starts("\x1f\x8b"sv)) return "a gzip archive";
  if (starts("\x89HDF"sv)) return "an HDF5 file, such as Keras writes";
  text.erase(0, text.find_first_not_of(" \t\r\n\xef\xbb\xbf"));
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  if (starts("<!doctype"sv) || starts("<html"sv)) return "an HTML page, so the download has failed";
  return "";
}

}  // namespace dp
