#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "checkpoint/files_support.h"
#include "checkpoint/hostile_corpus.h"
#include "checkpoint/memory_peak.h"
#include "engine/checkpoint/safetensors.h"
#include "support/catch.h"

using namespace dp::test;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr std::size_t kSlack = 64 << 20;

bool one_line(const std::string& text) {
  for (const char c : text)
    if (c < 32 || c > 126) return false;
  return text.size() < 4096;
}

Outcome read_bytes_of(const std::string& bytes) {
  return outcome_of([&] {
    dp::MemorySource source("f", std::as_bytes(std::span(bytes)));
    dp::read_safetensors(source);
  });
}

std::string small_file() {
  std::string json =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"F16","shape":[],"data_offsets":[8,10]},"c":{"dtype":"U8","shape":[0,7],"data_offsets":[10,10]}})";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  return safetensors_bytes(json, "0123456789");
}

}  // namespace

TEST_CASE("a hostile safetensors file is rejected for its fault, in little memory") {
  const ScratchFolder folder;
  const auto corpus = hostile_safetensors();
  CHECK(corpus.size() >= 40);
  for (const BadFile& bad : corpus) {
    INFO(bad.what);
    write_bytes(folder / "bad.safetensors", bad.bytes);
    const MemoryPeak peak;
    const Outcome outcome = outcome_of([&] { dp::read_safetensors(folder / "bad.safetensors"); });
    CHECK(peak.bytes() <= 2 * bad.bytes.size() + kSlack / 4);
    CHECK(outcome.code == 3);
    CHECK_THAT(outcome.text, Catch::Contains(folder / "bad.safetensors: ") && Catch::Contains(bad.message));
    CHECK(one_line(outcome.text));
    CHECK(LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bad.bytes.data()), bad.bytes.size()) == 0);
  }
}

TEST_CASE("good safetensors files take at most twice their size") {
  const ScratchFolder folder;
  const auto peak_of = [&](const std::string& bytes) {
    write_bytes(folder / "f", bytes);
    const MemoryPeak peak;
    dp::read_safetensors(folder / "f");
    return peak.bytes();
  };
  const std::string halves = safetensors_bytes(
      R"({"h":{"dtype":"BF16","shape":[8388608],"data_offsets":[0,16777216]}})", std::string(16 << 20, 1));
  CHECK(peak_of(halves) <= 2 * halves.size() + (1 << 20));
  const std::string floats = safetensors_bytes(R"({"f":{"dtype":"F32","shape":[4194304],"data_offsets":[0,16777216]}})",
                                               std::string(16 << 20, 1));
  CHECK(peak_of(floats) <= floats.size() + (1 << 20));
  // A header that holds only metadata, in strings of the maximum length.
  std::string json = "{\"__metadata__\":{";
  for (int i = 0; i < 16; ++i)
    json += (i ? ",\"" : "\"") + std::to_string(i) + "\":\"" + std::string(1000000, 'v') + "\"";
  const std::string metadata = safetensors_bytes(json + "}}", "");
  CHECK(peak_of(metadata) <= 2 * metadata.size() + (8 << 20));
}

TEST_CASE("a safetensors file cut at any byte is rejected") {
  const std::string whole = small_file();
  CHECK(read_bytes_of(whole).text.empty());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    INFO(size);
    CHECK(read_bytes_of(whole.substr(0, size)).code == 3);
  }
  CHECK(read_bytes_of(whole + '\0').code == 3);
}

TEST_CASE("a safetensors file with a wrong byte is rejected or read, never worse") {
  const std::string whole = small_file();
  int refused = 0;
  for (std::size_t at = 0; at < whole.size() - 10; ++at)
    for (const int flip : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ flip);
      const Outcome outcome = read_bytes_of(bytes);
      if (outcome.code != 3 && !outcome.text.empty()) FAIL("byte " << at << ": " << outcome.text);
      if (!one_line(outcome.text)) FAIL("byte " << at << " gives a text of several lines");
      refused += outcome.code == 3;
    }
  CHECK(refused > 1000);  // most of them
}

TEST_CASE("a path that is not a regular file is rejected at once") {
  const ScratchFolder folder;
  const auto refusal = [](const std::string& path) { return outcome_of([&] { dp::read_safetensors(path); }); };
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  std::filesystem::create_directory_symlink(folder.path(), folder / "link");
  std::filesystem::create_symlink("loop", folder / "loop");
  const std::pair<std::string, std::string> cases[] = {{folder.path(), "is a folder"},
                                                       {folder / "link", "is a folder"},
                                                       {folder / "pipe", "is not a regular file"},
                                                       {"/dev/zero", "is not a regular file"},
                                                       {"/dev/null", "is not a regular file"},
                                                       {"/proc/self/status", "has 0 bytes"},
                                                       {folder / "none", "No such file or directory"},
                                                       {folder / "loop", "Too many levels of symbolic links"},
                                                       {"", "No such file or directory"},
                                                       {folder / std::string("a\0b", 3), "a zero byte"},
                                                       {folder / std::string(300, 'n'), "File name too long"}};
  for (const auto& [path, message] : cases) {
    const Outcome outcome = refusal(path);
    INFO(path);
    CHECK(outcome.code == 3);
    CHECK_THAT(outcome.text, Catch::Contains(message));
  }
  if (::geteuid() != 0) {  // root can read every file
    write_bytes(folder / "secret", small_file());
    ::chmod((folder / "secret").c_str(), 0);
    CHECK_THAT(refusal(folder / "secret").text, Catch::Contains("Permission denied"));
  }
}

TEST_CASE("a header longer than the limit is rejected unread, however large the file") {
  const ScratchFolder folder;
  for (const std::uint64_t length : {std::uint64_t{100'000'001}, std::uint64_t{1} << 30}) {
    std::string begin(8, '\0');
    std::memcpy(begin.data(), &length, sizeof length);
    write_bytes(folder / "sparse", begin);
    std::filesystem::resize_file(folder / "sparse", std::uint64_t{1} << 31);
    const MemoryPeak peak;
    const Outcome outcome = outcome_of([&] { dp::read_safetensors(folder / "sparse"); });
    CHECK(outcome.code == 3);
    CHECK_THAT(outcome.text, Catch::Contains("its header would have more than 100000000 bytes"));
    CHECK(peak.bytes() < (1 << 20));
  }
}

TEST_CASE("a file larger than memory is rejected before anything is allocated") {
  const ScratchFolder folder;
  const std::string size = std::to_string(std::uint64_t{1} << 42);  // 4 TiB, a sparse file
  const std::string head =
      safetensors_bytes(R"({"x":{"dtype":"U8","shape":[)" + size + R"(],"data_offsets":[0,)" + size + "]}}", "");
  write_bytes(folder / "sparse", head);
  if (::truncate((folder / "sparse").c_str(), static_cast<off_t>(head.size() + (std::uint64_t{1} << 42))) != 0)
    DP_SKIP("this file system holds no sparse file of 4 TiB");
  const MemoryPeak peak;
  const Outcome outcome = outcome_of([&] { dp::read_safetensors(folder / "sparse"); });
  CHECK(outcome.code == 3);
  CHECK_THAT(outcome.text, Catch::Contains("needs " + size + " bytes of memory"));
  CHECK(peak.bytes() < (1 << 20));
}
