#include "checkpoint/files_support.h"
#include "engine/checkpoint/safetensors.h"
#include "support/catch.h"

using namespace dp::test;

// Names in JSON notation.
TEST_CASE("hostile tensor names are rejected") {
  const char* const names[] = {"",
                               "/",
                               "/etc/passwd",
                               "a/b",
                               "../a",
                               "..",
                               ".",
                               ".hidden",
                               "a..b",
                               "a/../b",
                               "\\\\\\\\server",
                               "..\\\\a",
                               "C:\\\\a",
                               "a\\u0000b",
                               "a\\nb",
                               "a\\r",
                               "\\u001b[2J",
                               "a\\u007f",
                               "a\\u0085b",
                               "a\\u2028b",
                               "gpj.\\u202e.exe",
                               "\\u2066a",
                               "a\\u002f..\\u002fb",
                               "a\xe2\x80\xae",
                               "a\xc2\x9b"};
  CHECK(std::size(names) >= 20);
  for (const char* name : names) {
    INFO(name);
    const std::string bytes =
        safetensors_bytes(std::string("{\"") + name + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", "");
    dp::MemorySource source("f", std::as_bytes(std::span(bytes)));
    const Outcome outcome = outcome_of([&] { dp::read_safetensors(source); });
    CHECK(outcome.code == 3);
    CHECK_THAT(outcome.text, Catch::Contains("has the tensor name '"));
  }
}

TEST_CASE("tensor names reject slashes and control characters and accept every other character") {
  for (unsigned c = 1; c < 0xffff; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;  // surrogates are not characters
    std::string name = "a";
    if (c < 0x80)
      name += static_cast<char>(c);
    else if (c < 0x800)
      name += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    else
      name += {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
               static_cast<char>(0x80 | (c & 63))};
    const bool control =
        c < 0x20 || (c >= 0x7f && c <= 0x9f) || (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
    const std::string wanted = c == '/' || c == '\\' ? "contains a slash"
                               : control             ? "contains a control character"
                                                     : "";
    if (dp::fault_of_tensor_name(name + "b") != wanted) FAIL("U+" << std::hex << c);
  }
}

TEST_CASE("ordinary tensor names are accepted") {
  for (const char* name : {"a", "layer1.0.conv1.weight", "module.fc.bias", "num_batches_tracked", "x y", "größe",
                           "重み", "e\xf0\x9f\x98\x80", "trailing.", "a-b_c:d", "\"quoted\"", "~", "100%"})
    CHECK(dp::fault_of_tensor_name(name).empty());
}
