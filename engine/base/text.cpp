#include "engine/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "dp/shell.h"
#include "dp/trainer.h"

namespace dp {
namespace {

// Length in bytes of the UTF-8 character at `at`; 0 if it is invalid. Overlong forms and surrogates are invalid.
std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(at + i < text.size() ? text[at + i] : 0); };
  const auto tail = [&](std::size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return tail(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    if (!tail(1) || !tail(2)) return 0;
    if (lead == 0xE0 && byte(1) < 0xA0) return 0;
    if (lead == 0xED && byte(1) > 0x9F) return 0;
    return 3;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    if (!tail(1) || !tail(2) || !tail(3)) return 0;
    if (lead == 0xF0 && byte(1) < 0x90) return 0;
    if (lead == 0xF4 && byte(1) > 0x8F) return 0;
    return 4;
  }
  return 0;
}

// Of a valid UTF-8 character.
char32_t code_point(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0);
  char32_t code = byte(0) & (0x7Fu >> character.size());
  for (std::size_t i = 1; i < character.size(); ++i) code = code << 6 | (byte(i) & 0x3Fu);
  return code;
}

// Control characters, line separators, marks of text direction, and characters without a width. With them, different
// texts can look the same, or the parts of a text appear in another order.
bool is_invisible(char32_t code) {
  static constexpr std::array<std::pair<char32_t, char32_t>, 14> kRanges{{{0x00, 0x1F},
                                                                          {0x7F, 0x9F},
                                                                          {0xAD, 0xAD},
                                                                          {0x61C, 0x61C},
                                                                          {0x115F, 0x1160},
                                                                          {0x180E, 0x180E},
                                                                          {0x200B, 0x200F},
                                                                          {0x2028, 0x202E},
                                                                          {0x2060, 0x206F},
                                                                          {0x3164, 0x3164},
                                                                          {0xFEFF, 0xFEFF},
                                                                          {0xFFA0, 0xFFA0},
                                                                          {0xFFF9, 0xFFFB},
                                                                          {0xE0000, 0xE0FFF}}};
  return std::ranges::any_of(kRanges,
                             [code](const auto& range) { return code >= range.first && code <= range.second; });
}

// What follows "http://", without the user name, the password and the query.
std::string without_secrets(std::string_view address) {
  const std::string_view authority = address.substr(0, address.find_first_of("/?#"));
  const std::size_t colon = authority.find(':');
  // Text after a colon that is not a port number may be a password that contains a slash.
  const bool open = colon != std::string_view::npos && !authority.starts_with('[') &&
                    authority.find_first_not_of("0123456789'\",;)", colon + 1) != std::string_view::npos;
  const std::size_t user = (open ? address : authority).rfind('@');
  std::string shown = user == std::string_view::npos ? std::string(address) : "***" + std::string(address.substr(user));
  if (const std::size_t query = shown.find('?'); query != std::string::npos && query + 1 < shown.size())
    shown.replace(query + 1, std::min(shown.find_first_of("'\"", query), shown.size()) - query - 1, "***");
  return shown;
}

// Every address ends at a space.
std::string with_addresses_hidden(std::string_view text) {
  std::string shown;
  for (std::size_t mark = 0; (mark = text.find(":/", mark)) != std::string_view::npos; mark = 0) {
    const std::size_t begin = std::min(text.find_first_not_of('/', mark + 1), text.size());
    const std::size_t length = std::min(text.find_first_of(" \t\r\n", begin), text.size()) - begin;
    shown += std::string(text.substr(0, begin)) + without_secrets(text.substr(begin, length));
    text.remove_prefix(begin + length);
  }
  return shown + std::string(text);
}

bool is_plain(char c) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'), digit = c >= '0' && c <= '9';
  return letter || digit || std::string_view("@%+=:,./-_").find(c) != std::string_view::npos;
}

}  // namespace

std::string shell_argument(std::string_view argument) {
  if (!argument.empty() && std::all_of(argument.begin(), argument.end(), is_plain)) return std::string(argument);
  if (std::all_of(argument.begin(), argument.end(), [](char c) { return c >= ' ' && c <= '~' && c != '\''; }))
    return "'" + std::string(argument) + "'";
  std::string out = "$'";
  for (const char c : argument)
    if (c == '\'' || c == '\\')
      out += std::string("\\") + c;
    else if (c >= ' ' && c <= '~')
      out += c;
    else
      out += fmt::format("\\{:03o}", static_cast<unsigned char>(c));
  return out + "'";
}

std::string path_argument(std::string_view path) {
  return shell_argument(path.starts_with('-') ? "./" + std::string(path) : std::string(path));
}

std::string printable(std::string_view raw) {
  const std::string shown = with_addresses_hidden(raw);
  const std::string_view text = shown;
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    const std::string_view character = text.substr(at, std::max<std::size_t>(length, 1));
    if (length != 0 && !is_invisible(code_point(character)))
      out += character;
    else
      for (const char c : character) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    at += character.size();
  }
  return out;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string field = "\"";
  for (const char c : text) field += c == '"' ? std::string("\"\"") : std::string(1, c);
  return field + "\"";
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0, length = 0; at < text.size(); at += length)
    if ((length = utf8_length(text, at)) == 0) return false;
  return true;
}

std::string json_line(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

std::string toml_string(const std::string& text) {
  // Not restricted to ASCII: JSON escapes characters above 16 bits as surrogates, which TOML rejects.
  const std::string json = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string out;
  for (const char c : json) out += c == '\x7f' ? std::string("\\u007f") : std::string(1, c);
  return out;
}

std::string base64(std::span<const std::uint8_t> bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i) bits = bits << 8 | (i < count ? bytes[at + i] : 0u);
    for (std::size_t i = 0; i < 4; ++i) text += i <= count ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

std::string duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) seconds = 0;
  const auto whole = static_cast<std::int64_t>(std::min(seconds, 1e12) + 0.5);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string with_separators(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::size_t first = number < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string mebibytes(std::size_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 1048576.0); }

}  // namespace dp
