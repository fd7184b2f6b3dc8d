// Texts of other programs and files for terminals and JSON: every byte sequence, against a plain decoder.
#include "engine/base/text.h"

#include <cmath>
#include <cstdio>

#include "dp/shell.h"
#include "dp/trainer.h"
#include "support/catch.h"

namespace {

std::string escaped(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    char hexadecimal[8];
    std::snprintf(hexadecimal, sizeof hexadecimal, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
    text += hexadecimal;
  }
  return text;
}

// The length of the character at the front; 0 if it is not UTF-8.
std::size_t front_length(std::string_view text, std::uint32_t* point) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  const std::size_t length = lead < 0x80 ? 1 : lead / 32 == 6 ? 2 : lead / 16 == 14 ? 3 : lead / 8 == 30 ? 4 : 0;
  if (length == 0 || length > text.size()) return 0;
  *point = length == 1 ? lead : lead & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if (byte(i) / 64 != 2) return 0;
    *point = *point * 64 + byte(i) % 64;
  }
  constexpr std::uint32_t kLowest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = *point >= 0xd800 && *point <= 0xdfff;
  return *point < kLowest[length] || *point > 0x10ffff || surrogate ? 0 : length;
}

std::string expected(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    std::uint32_t point = 0;
    const std::size_t length = front_length(text, &point);
    const bool control = point < 0x20 || (point >= 0x7f && point <= 0x9f) || (point >= 0x2028 && point <= 0x202e) ||
                         (point >= 0x2060 && point <= 0x206f) || (point >= 0x200b && point <= 0x200f) ||
                         (point >= 0x115f && point <= 0x1160) || (point >= 0xfff9 && point <= 0xfffb) ||
                         (point >= 0xe0000 && point <= 0xe0fff) || point == 0xad || point == 0x61c || point == 0x180e ||
                         point == 0x3164 || point == 0xfeff || point == 0xffa0;
    const std::string_view front = text.substr(0, length == 0 ? 1 : length);
    shown += length == 0 || control ? escaped(front) : std::string(front);
    text.remove_prefix(front.size());
  }
  return shown;
}

void check(const std::string& text) {
  if (dp::printable(text) != expected(text)) FAIL(escaped(text) << " is shown as " << escaped(dp::printable(text)));
}

}  // namespace

TEST_CASE("every sequence of two bytes is shown as UTF-8 without controls, or escaped") {
  std::string text(2, '\0');
  for (int first = 0; first < 256; ++first)
    for (int second = 0; second < 256; ++second) {
      text[0] = static_cast<char>(first), text[1] = static_cast<char>(second);
      check(text);
    }
}

TEST_CASE("sequences of three and four bytes are shown as UTF-8 without controls, or escaped") {
  const std::string edges = "\x7f\x80\x8f\x90\x9f\xa0\xa5\xa6\xa7\xa8\xa9\xaa\xad\xae\xaf\xbf\xc0";
  std::string three = "abc", four = "abcd";
  for (int first = 0xe0; first < 0xf9; ++first)
    for (int second = 0x7f; second < 0xc1; ++second)
      for (const char third : edges) {
        three[0] = four[0] = static_cast<char>(first), three[1] = four[1] = static_cast<char>(second);
        three[2] = four[2] = third;
        if (first < 0xf0) check(three);
        if (first < 0xf0) continue;
        for (const char fourth : {'\x7f', '\x80', '\xbf', '\xc0'}) four[3] = fourth, check(four);
      }
}

TEST_CASE("an incomplete character at the end is escaped, and decoding continues after an invalid byte") {
  for (const std::string whole : {"é", "数", "😀"})
    for (std::size_t length = 1; length < whole.size(); ++length) {
      check(whole.substr(0, length));
      check("a" + whole.substr(0, length) + "b" + whole);
    }
  CHECK(dp::printable("").empty());
  CHECK(dp::printable("a\xff\xc3\xa9\x80z") == "a\\xff\xc3\xa9\\x80z");
}

TEST_CASE("no control, mark of direction or character without a width is printed") {
  for (const std::string hidden : {"\u202a", "\u202b", "\u202c", "\u202d", "\u202e", "\u2066",    "\u2067", "\u2068",
                                   "\u2069", "\u200e", "\u200f", "\u061c", "\u200b", "\u200c",    "\u200d", "\u2060",
                                   "\u2064", "\ufeff", "\u00ad", "\u180e", "\u3164", "\U000e0041"}) {
    CHECK(dp::printable("a" + hidden + "b") == "a" + escaped(hidden) + "b");
    check(hidden + hidden);
  }
  for (const std::string shown : {"بقرة", "ꯅꯨꯡ", "naïve", "数", "😀", "ünï", "-\u2010\u2027\u2030"})
    CHECK(dp::printable(shown) == shown);
}

TEST_CASE("no password, user name or query of an address is printed") {
  const auto shown = [](const std::string& text) { return dp::printable(text); };
  CHECK(shown("http://me:secret@host/x") == "http://***@host/x");
  CHECK(shown("https://secret@host:80/x") == "https://***@host:80/x");
  CHECK(shown("--mirror 'http://me:secret@host/x' failed") == "--mirror 'http://***@host/x' failed");
  CHECK(shown("HTTP://me:se@cret@host/ and socks5h://me:secret@[::1]:9/") ==
        "HTTP://***@host/ and socks5h://***@[::1]:9/");
  for (const std::string password : {"se/cret", "se?cret", "se#cret", "se'cret", "se\"cret", "12a/b", "", "%40:/"})
    CHECK(shown("a http://me:" + password + "@host/x b") == "a http://***@host/x b");
  CHECK(shown("http://host/x?key=secret&b=1") == "http://host/x?***");
  CHECK(shown("'http://me:secret@host/x?key=secret': 404") == "'http://***@host/x?***': 404");
  CHECK(shown("http:/me:secret@host/x") == "http:/***@host/x");  // as a path
  for (const std::string plain :
       {"http://host:8080/x", "http://host/pkg@1.2/x", "http://host:80/pkg@1.2", "http://[::1]:80/x",
        "'http://host:8080', 'b@c'", "me@host", "a: b@c", "/a:/", ":/", "http://", "http://host?"})
    CHECK(shown(plain) == plain);
}

TEST_CASE("durations are rounded to seconds, and numbers have a comma before every third digit from the right") {
  CHECK(dp::duration(59.4) == "0:00:59");
  CHECK(dp::duration(59.5) == "0:01:00");
  CHECK(dp::duration(3599) == "0:59:59");
  CHECK(dp::duration(3600) == "1:00:00");
  CHECK(dp::duration(360000) == "100:00:00");
  CHECK(dp::duration(1e300) == "277777777:46:40");
  CHECK(dp::duration(NAN) == "0:00:00");
  const std::pair<std::int64_t, const char*> numbers[] = {{12, "12"},
                                                          {1000, "1,000"},
                                                          {-999, "-999"},
                                                          {123456, "123,456"},
                                                          {-123456, "-123,456"},
                                                          {1234567, "1,234,567"},
                                                          {-1234567890, "-1,234,567,890"}};
  for (const auto& [number, text] : numbers) CHECK(dp::with_separators(number) == text);
  CHECK(dp::mebibytes(0) == "0.0 MiB");
  CHECK(dp::mebibytes(1536 << 10) == "1.5 MiB");
}

TEST_CASE("bytes that are not UTF-8 are replaced in JSON and TOML") {
  CHECK(dp::json_line({{"a", "x\xffy"}, {"b", {1, 2.5, true, nullptr}}}) ==
        R"({"a":"x\ufffdy","b":[1,2.5,true,null]})");
  CHECK(dp::json_line("é😀") == R"("\u00e9\ud83d\ude00")");
  CHECK(dp::toml_string("x\xffy") == "\"x\xef\xbf\xbdy\"");
  CHECK(dp::toml_string("").size() == 2);
}

TEST_CASE("an argument of a printed command can be pasted into a shell") {
  CHECK(dp::shell_argument("runs/a-1_b.c") == "runs/a-1_b.c");
  CHECK(dp::shell_argument("") == "''");
  CHECK(dp::shell_argument("my run") == "'my run'");
  CHECK(dp::shell_argument("~/$(touch x);`y`&\"*") == "'~/$(touch x);`y`&\"*'");
  CHECK(dp::shell_argument("it's") == "$'it\\'s'");
  CHECK(dp::shell_argument("a\nb\\") == "$'a\\012b\\\\'");
  CHECK(dp::shell_argument("\xc3\xbc") == "$'\\303\\274'");
  CHECK(dp::path_argument("-run") == "./-run");
  CHECK(dp::path_argument("-a run") == "'./-a run'");
}
