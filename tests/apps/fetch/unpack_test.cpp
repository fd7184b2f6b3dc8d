// Archives of data sets, whole, damaged and hostile.
#include "apps/dp_train/fetch/files.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <set>

#include "apps/dp_train/fetch/fetch.h"
#include "apps/dp_train/fetch/files.h"
#include "apps/fetch/local_server.h"
#include "apps/fetch/output_into.h"
#include "dp/error.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

struct Entry {
  std::string name;
  std::string content{};
  unsigned type = AE_IFREG;
  std::string link{}, hard_link{};
};

void pack(const std::string& path, const std::vector<Entry>& entries) {
  archive* const writer = archive_write_new();
  archive_write_add_filter_gzip(writer);
  archive_write_set_format_ustar(writer);
  REQUIRE(archive_write_open_filename(writer, path.c_str()) == ARCHIVE_OK);
  for (const Entry& one : entries) {
    archive_entry* const entry = archive_entry_new();
    archive_entry_set_pathname(entry, one.name.c_str());
    archive_entry_set_filetype(entry, one.type);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, static_cast<la_int64_t>(one.content.size()));
    if (!one.link.empty()) archive_entry_set_symlink(entry, one.link.c_str());
    if (!one.hard_link.empty()) archive_entry_set_hardlink(entry, one.hard_link.c_str());
    REQUIRE(archive_write_header(writer, entry) == ARCHIVE_OK);
    archive_write_data(writer, one.content.data(), one.content.size());
    archive_entry_free(entry);
  }
  REQUIRE(archive_write_close(writer) == ARCHIVE_OK);
  archive_write_free(writer);
}

const std::vector<Entry> kGood{
    {"set/", "", AE_IFDIR}, {"set/a.bin", "aaaa"}, {"set/b.bin", "bb"}, {"set/read.me", "r"}};

// A data set in an archive that `entries` fill.
struct UnpackCase {
  explicit UnpackCase(const std::vector<Entry>& entries) {
    pack(temp / "packed.tar.gz", entries);
    bytes = read_text(temp / "packed.tar.gz");
    source = {"cifar10",
              {},
              "set",
              {{"set.tar.gz", bytes.size(), dp_train::checksum(temp / "packed.tar.gz", 32)}},
              {{"a.bin", 4}, {"b.bin", 2}}};
    fs::create_directory(temp / "data");
  }
  void fetch(bool quiet = true) const {
    const LocalServer server([&](const Request& request) { return part_of(bytes, request); });
    ::setenv("no_proxy", "127.0.0.1", 1);
    const std::atomic<int> stop{0};
    dp_train::fetch(source, {.data_path = temp / "data", .mirror = server.address(), .quiet = quiet}, stop);
  }
  std::set<std::string> found() const {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(temp / "data"))
      names.insert(fs::relative(entry.path(), temp / "data").string());
    return names;
  }

  TemporaryFolder temp;
  std::string bytes;
  dp_train::Source source;
};

TEST_CASE("an archive is unpacked and removed") {
  const UnpackCase one(kGood);
  const std::string archive = one.temp / "data/set.tar.gz", folder = one.temp / "data/set", into = one.temp / "printed";
  const std::string train = "train on it with: dp_train --dataset cifar10 --data-path " + (one.temp / "data") + "\n";
  {
    const OutputInto file(STDOUT_FILENO, into);
    one.fetch(/*quiet=*/false);
  }
  CHECK_THAT(read_text(into),
             Catch::StartsWith(archive + "  from http://127.0.0.1:") &&
                 Catch::EndsWith("/set.tar.gz\nunpacking " + archive + "\n" + folder + "  unpacked\n" + train));
  CHECK(one.found() == std::set<std::string>{"set", "set/a.bin", "set/b.bin", "set/read.me"});
  CHECK(read_text(one.temp / "data/set/a.bin") == "aaaa");
  fs::remove(into);
  {
    const OutputInto file(STDOUT_FILENO, into);
    one.fetch(/*quiet=*/false);
  }
  CHECK(read_text(into) == folder + "  already there\n" + train);
}

TEST_CASE("missing and truncated files of an unpacked archive are restored, others stay") {
  const UnpackCase one(kGood);
  fs::create_directories(one.temp / "data/set");
  fs::create_directories(one.temp / "data/.set.unpacking/set/old");  // left by a killed process
  write_text(one.temp / "data/set/a.bin", "a");
  write_text(one.temp / "data/set/mine", "m");
  one.fetch();
  CHECK(one.found() == std::set<std::string>{"set", "set/a.bin", "set/b.bin", "set/read.me", "set/mine"});
  CHECK(read_text(one.temp / "data/set/a.bin") == "aaaa");
}

TEST_CASE("an archive without the files of the data set is rejected") {
  const UnpackCase one({{"set/a.bin", "aaaa"}, {"set/b.bin", "longer"}});
  CHECK_THROWS_WITH(one.fetch(), Catch::Contains("does not hold the files of cifar10"));
  CHECK(one.found() == std::set<std::string>{"set.tar.gz"});
}

TEST_CASE("archive entries that lead elsewhere are refused") {
  for (const Entry& bad : {Entry{"/tmp/dp-test-absolute", "x"}, Entry{"../outside", "x"},
                           Entry{"set/../../outside", "x"}, Entry{"set/link", "", AE_IFLNK, "/etc"},
                           Entry{"set/hard", "", AE_IFREG, "", "set/a.bin"}, Entry{"set/pipe", "", AE_IFIFO}}) {
    INFO(bad.name);
    std::vector<Entry> entries = kGood;
    entries.push_back(bad);
    entries.push_back({"set/link/passwd", "x"});
    const UnpackCase one(entries);
    try {
      one.fetch();
      FAIL("unpacked");
    } catch (const dp::Error& error) {
      CHECK(error.code() == dp::ErrorCode::data);
      CHECK_THAT(error.what(), Catch::Contains("'" + bad.name + "' is refused"));
    }
    CHECK(one.found() == std::set<std::string>{"set.tar.gz"});
    CHECK_FALSE(fs::exists(one.temp / "outside"));
    CHECK_FALSE(fs::exists("/tmp/dp-test-absolute"));
  }
}

TEST_CASE("damaged archives are rejected") {
  const TemporaryFolder temp;
  const std::atomic<int> never{0};
  CHECK_THROWS_WITH(dp_train::unpack(temp / "none", temp / "out", never), Catch::Contains("Failed to open"));
  pack(temp / "good", {{"set/a.bin", std::string(100000, 'a')}});
  const std::string good = read_text(temp / "good");
  for (const std::string& bytes :
       {good.substr(0, good.size() / 2), std::string("\x1f\x8b junk"), std::string("text")}) {
    write_text(temp / "bad", bytes);
    const std::atomic<int> stop{0};
    try {
      dp_train::unpack(temp / "bad", temp / "out", stop);
      FAIL("unpacked " << bytes.size());
    } catch (const dp::Error& error) {
      CHECK(error.code() == dp::ErrorCode::data);
      CHECK_THAT(error.what(), Catch::StartsWith(temp / "bad: "));
    }
    fs::remove_all(temp / "out");
  }
}

TEST_CASE("a stop ends unpacking") {
  const TemporaryFolder temp;
  pack(temp / "good", kGood);
  const std::atomic<int> stop{2};
  dp_train::unpack(temp / "good", temp / "out", stop);
  CHECK(fs::is_empty(temp / "out"));
}

}  // namespace
