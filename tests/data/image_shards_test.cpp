// Tar files of images: what is read, in which order, and what is refused.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "data/formats/tar_index.h"
#include "data/image_files.h"
#include "data/refusal.h"
#include "dp/dataset.h"
#include "dp/loader.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using dp::test::corpus_image;
using dp::test::data_refusal;
using dp::test::TemporaryFolder;
using dp::test::write_text;

namespace {

std::string block_of(const std::string& name, std::size_t bytes, char kind = '0') {
  std::string block(512, '\0');
  name.copy(block.data(), 100);
  std::snprintf(block.data() + 124, 12, "%011zo", bytes);
  block[156] = kind;
  std::string(
      "ustar\0"
      "00",
      8)
      .copy(block.data() + 257, 8);
  block.replace(148, 8, 8, ' ');
  unsigned sum = 0;
  for (const char byte : block) sum += static_cast<unsigned char>(byte);
  std::snprintf(block.data() + 148, 8, "%06o", sum);
  return block;
}

std::string padded(std::string text) {
  text.resize((text.size() + 511) / 512 * 512);
  return text;
}

// A member of an archive.
std::string member(const std::string& name, const std::string& contents, char kind = '0') {
  return block_of(name, contents.size(), kind) + padded(contents);
}

std::string image(const std::string& name = "jpeg_420") {
  const auto bytes = corpus_image(name);
  return {bytes.begin(), bytes.end()};
}

const std::string kEnd(1024, '\0');

struct Shards {
  explicit Shards(const std::string& train, const std::string& val = "") {
    write_text(folder / "a-train-0.tar", train);
    write_text(folder / "a-val-0.tar", val.empty() ? member("v.jpg", image()) + member("v.cls", "cat") + kEnd : val);
  }
  dp::DatasetPair open() const { return dp::datasets::image_shards(folder.path(), 8); }
  std::string refusal() const {
    return data_refusal([&] { open(); });
  }
  TemporaryFolder folder;
};

}  // namespace

TEST_CASE("images of tar files have the classes beside them, and the same pixels as in a folder") {
  const Shards shards(member("deep/0.jpg", image("jpeg_422")) + member("deep/0.cls", "dog\n") +
                      member("deep/1.json", R"({"label": "cat", "more": [1]})") +
                      member("deep/1.PNG", image("png_rgb")) + member("deep/1.txt", "a caption") + kEnd);
  write_text(shards.folder / "a-train-1.tar",
             member("2.webp", image("webp_lossy")) + member("2.cls", "cat"));  // no end
  const dp::DatasetPair data = shards.open();
  CHECK(data.train->class_names() == std::vector<std::string>{"cat", "dog"});
  REQUIRE(data.train->size() == 3);
  CHECK((data.train->label(0) == 1 && data.train->label(1) == 0 && data.train->label(2) == 0));
  CHECK(data.train->sample_id(0) == "deep/0.jpg " + std::to_string(corpus_image("jpeg_422").size()));
  CHECK(data.train->bytes_to_read() > 3 * 50 * 33);
  TemporaryFolder files;
  for (const char* part : {"train", "val"}) {
    files.write(std::string(part) + "/cat/1.png", corpus_image("png_rgb"));
    files.write(std::string(part) + "/dog/0.jpg", corpus_image("jpeg_422"));
  }
  const dp::DatasetPair same = dp::datasets::image_folder(files.path(), 8);
  CHECK(data.train->image(0) == same.train->image(1));
  CHECK(data.train->image(1) == same.train->image(0));
  CHECK(data.test->size() == 1);
}

TEST_CASE("the word for a part stands by itself in the name of an archive, and one name has one part") {
  const std::string sample = member("0.jpg", image()) + member("0.cls", "cat") + kEnd;
  TemporaryFolder folder;
  write_text(folder / "retrieval-train-0.tar", sample);
  write_text(folder / "latest_train_1.tar", sample);
  CHECK_THAT(data_refusal([&] { dp::datasets::image_shards(folder.path(), 8); }),
             Catch::Contains("no tar files of the part val"));
  write_text(folder / "retrieval-val-0.tar", sample);
  const dp::DatasetPair data = dp::datasets::image_shards(folder.path(), 8);
  CHECK((data.train->size() == 2 && data.test->size() == 1));
  write_text(folder / "train-or-test.tar", sample);
  CHECK_THAT(data_refusal([&] { dp::datasets::image_shards(folder.path(), 8); }),
             Catch::Contains("train-or-test.tar: its name has the words of both parts"));
}

TEST_CASE("shards may be in folders of their parts, and class numbers are sorted by value") {
  TemporaryFolder folder;
  std::filesystem::create_directories(folder / "train");
  std::filesystem::create_directories(folder / "test");
  const auto sample = [&](const std::string& key, const std::string& label) {
    return member(key + ".jpg", image()) + member(key + ".cls", label);
  };
  write_text(folder / "train/1.tar", sample("a", "10") + sample("b", "9") + kEnd);
  write_text(folder / "train/0.tar", sample("c", "2") + kEnd);
  write_text(folder / "train/ignored.txt", "no archive");
  write_text(folder / "test/0.tar", sample("d", "9") + kEnd);
  const dp::DatasetPair data = dp::datasets::find("imageshards").open_sized(folder.path(), 8, {});
  CHECK(data.train->class_names() == std::vector<std::string>{"2", "9", "10"});
  CHECK((data.train->label(0) == 0 && data.train->label(1) == 2 && data.train->label(2) == 1));
  CHECK(data.test->label(0) == 1);
  CHECK(dp::datasets::image_shards_train(folder.path(), 8)->size() == 3);
}

TEST_CASE("archives with long names in POSIX's and GNU's form are listed as tar wrote them") {
  const std::string name(150, 'n');
  const std::string path = std::string(150, 'p') + ".jpg";
  std::string record = " path=" + path + "\n";
  record = std::to_string(record.size() + 3) + record;
  TemporaryFolder folder;
  write_text(folder / "x.tar", member("././@LongLink", name + std::string(1, '\0'), 'L') + member("short", "abc") +
                                   member("PaxHeader", record, 'x') + member("short2", "de") +
                                   block_of("folder/", 0, '5') + block_of("link", 0, '2') +
                                   member("sparse", "parts", 'S') + member("", "", 'g') + member("last", "") + kEnd);
  const auto entries = dp::list_tar(folder / "x.tar");
  REQUIRE(entries.size() == 3);
  CHECK((entries[0].name == name && entries[0].bytes == 3));
  CHECK((entries[1].name == path && entries[1].bytes == 2));
  CHECK((entries[2].name == "last" && entries[2].bytes == 0));
  std::vector<std::uint8_t> bytes(3);
  dp::PieceReader(folder / "x.tar").read(entries[0].begin, bytes);
  CHECK(std::string(bytes.begin(), bytes.end()) == "abc");
}

TEST_CASE("an archive that the system's tar writes is read") {
  if (std::system("tar --version > /dev/null 2>&1") != 0) DP_SKIP("tar is not installed");
  for (const char* format : {"ustar", "gnu", "posix", "v7"}) {
    INFO(format);
    TemporaryFolder folder;
    folder.write("files/cat.0001.jpg", corpus_image("jpeg_420"));
    write_text(folder / "files/cat.cls", "cat");
    const bool is_long = std::string(format) == "gnu" || std::string(format) == "posix";
    const std::string deep = "files/" + std::string(is_long ? 120 : 60, 'd');
    folder.write(deep + "/x.jpg", corpus_image("jpeg_420"));
    REQUIRE(std::system(("cd '" + folder.path() + "' && tar -c --format=" + format + " -f x.tar files").c_str()) == 0);
    std::vector<std::string> names;
    for (const dp::TarEntry& entry : dp::list_tar(folder / "x.tar")) {
      names.push_back(entry.name);
      if (!entry.name.ends_with(".jpg")) continue;
      std::vector<std::uint8_t> bytes(entry.bytes);
      dp::PieceReader(folder / "x.tar").read(entry.begin, bytes);
      CHECK(bytes == corpus_image("jpeg_420"));
    }
    std::ranges::sort(names);
    CHECK(names == std::vector<std::string>{"files/cat.0001.jpg", "files/cat.cls", deep + "/x.jpg"});
  }
}

TEST_CASE("bad shards are refused with their file and member") {
  CHECK_THAT(Shards(member("0.jpg", image()) + kEnd).refusal(),
             Catch::Contains("a-train-0.tar: 0.jpg: an image without a class; add 0.cls"));
  CHECK_THAT(Shards(member("0.txt", "x") + kEnd).refusal(), Catch::Contains("a-train-0.tar: no images in it"));
  CHECK_THAT(Shards(member("0.jpg", image()) + member("0.json", R"({"label": [1]})") + kEnd).refusal(),
             Catch::Contains("its label is neither text nor a whole number"));
  CHECK_THAT(Shards(member("0.jpg", image()) + member("0.cls", " \n") + kEnd).refusal(),
             Catch::Contains("a class name must have 1 to 4096 bytes"));
  const std::string good = member("0.jpg", image()) + member("0.cls", "dog") + kEnd;
  CHECK_THAT(Shards(good).refusal(), Catch::Contains("class 'cat' has no training images"));
  TemporaryFolder empty;
  CHECK_THAT(data_refusal([&] { dp::datasets::image_shards(empty.path(), 8); }),
             Catch::Contains("imageshards: no tar files of the part train in"));
  CHECK_THROWS_WITH(dp::datasets::image_shards(empty.path(), 0), Catch::Contains("imageshards: the side"));
  const Shards later(member("0.jpg", image()) + member("0.cls", "cat") + kEnd);
  const dp::DatasetPair data = later.open();
  write_text(later.folder / "a-train-0.tar", "gone");
  CHECK_THAT(data_refusal([&] { data.train->image(0); }), Catch::Contains("the data end too early"));
}

TEST_CASE("a damaged archive is refused at any cut and any changed byte of its headers, or read without a fault") {
  const std::string whole = member("PaxHeader", "20 path=a/long/name\n", 'x') + member("0.cls", "cat") +
                            member("././@LongLink", std::string("b\0", 2), 'L') + member("1.cls", "cat") + kEnd;
  TemporaryFolder folder;
  const std::string path = folder / "x.tar";
  int refused = 0;
  const auto list = [&](const std::string& text) {
    write_text(path, text);
    try {
      for (const dp::TarEntry& entry : dp::list_tar(path)) REQUIRE(entry.begin + entry.bytes <= text.size());
    } catch (const dp::Error& error) {
      REQUIRE(error.code() == dp::ErrorCode::data);
      ++refused;
    }
  };
  for (std::size_t cut = 0; cut < whole.size(); cut += 61) list(whole.substr(0, cut));
  for (std::size_t at = 0; at < whole.size(); at += at % 512 < 160 ? 3 : 31)  // most fields are in the first bytes
    for (const char byte : {'\0', '\x7f', '\xff', '9'}) {
      std::string changed = whole;
      changed[at] = byte;
      list(changed);
    }
  CHECK(refused > 100);
  list("\x1f\x8b compressed" + std::string(600, 'x'));
  write_text(path, member("0.cls", "cat").replace(124, 11, "77777777777"));
  CHECK_THAT(data_refusal([&] { dp::list_tar(path); }), Catch::Contains("byte 0: expected a header of a tar archive"));
  CHECK_THAT(data_refusal([&] { write_text(path, block_of("0.cls", 1'000'000)), dp::list_tar(path); }),
             Catch::Contains("a file that ends behind the archive"));
}
