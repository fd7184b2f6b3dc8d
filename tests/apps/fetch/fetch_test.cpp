// Downloads from a local server, with a table of small files.
#include "apps/dp_train/fetch/fetch.h"

#include <fcntl.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <tuple>

#include "apps/dp_train/fetch/files.h"
#include "apps/fetch/local_server.h"
#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "dp/dataset.h"
#include "dp/error.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;
using dp_train::Source;

// Packed, of `size` bytes or a little more.
std::string packed_file(std::size_t size) {
  std::string noise;
  for (std::uint32_t i = 0; i < size; ++i) noise += static_cast<char>((i * i * 2654435761u) >> 19);
  return gzip(noise);
}

const std::string& data() {
  static const std::string bytes = packed_file(300000);
  return bytes;
}

std::string digest(const std::string& bytes, std::size_t digits = 64) {
  const TemporaryFolder temp;
  write_text(temp / "file", bytes);
  return dp_train::checksum(temp / "file", digits);
}

struct DownloadCase {
  explicit DownloadCase(const std::string& bytes = data()) : file(bytes) {
    source = {"mnist", {}, "MNIST/raw", {{"data.gz", file.size(), digest(file)}}};
  }
  std::string path() const { return temp / "MNIST/raw/data.gz"; }
  std::string part() const { return path() + ".part"; }
  void start_part(const std::string& bytes) const {
    fs::create_directories(temp / "MNIST/raw");
    write_text(part(), bytes);
  }
  void fetch(const std::string& mirror, int patience = 300) const {
    ::setenv("no_proxy", "127.0.0.1", 1);
    dp_train::fetch(source, {.data_path = temp.path(), .mirror = mirror, .quiet = true, .patience = patience}, stop);
  }
  // The error of a fetch.
  std::string refusal(const std::string& mirror, dp::ErrorCode code, int patience = 300) const {
    try {
      fetch(mirror, patience);
    } catch (const dp::Error& error) {
      INFO(error.what());
      CHECK(error.code() == code);
      CHECK_FALSE(fs::exists(path()));
      return error.what();
    }
    FAIL("fetched");
    return {};
  }
  void check_fetched() const {
    CHECK(read_text(path()) == file);
    CHECK_FALSE(fs::exists(part()));
  }

  TemporaryFolder temp;
  std::string file;
  Source source;
  std::atomic<int> stop{0};
};

TEST_CASE("checksums are SHA-256 and MD5") {
  CHECK(digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(digest("abc", 32) == "900150983cd24fb0d6963f7d28e17f72");
  CHECK(digest("", 32) == "d41d8cd98f00b204e9800998ecf8427e");
}

TEST_CASE("a file is downloaded once, and again if it differs") {
  const DownloadCase one;
  const LocalServer server([&](const Request& request) { return part_of(one.file, request); });
  one.fetch(server.address());
  one.check_fetched();
  one.fetch(server.address());
  REQUIRE(server.requests().size() == 1);
  CHECK(server.requests()[0].path == "/data.gz");
  CHECK_FALSE(server.requests()[0].from);
  write_text(one.path(), std::string(one.file.size(), '\x1f'));
  one.fetch(server.address());
  one.check_fetched();
  CHECK(server.requests().size() == 2);
}

TEST_CASE("a cut connection keeps what was received, and the next call requests the rest") {
  const DownloadCase one;
  const LocalServer server([&](const Request& request) {
    Reply reply = part_of(one.file, request);
    if (!request.from) reply.sent = 100000;
    return reply;
  });
  const std::string error = one.refusal(server.address(), dp::ErrorCode::io);
  CHECK_THAT(error, Catch::Contains("fetch mnist: " + server.address() + "data.gz: ") &&
                        Catch::Contains("run the command again") && Catch::Contains("100000 bytes"));
  CHECK(read_text(one.part()) == one.file.substr(0, 100000));
  one.fetch(server.address());
  one.check_fetched();
  REQUIRE(server.requests().size() == 2);
  CHECK(server.requests()[1].from == 100000);
}

TEST_CASE("a server that ignores ranges sends the file from its first byte") {
  const DownloadCase one;
  one.start_part(one.file.substr(0, 5000));
  const LocalServer server([&](const Request&) { return Reply{one.file}; });
  one.fetch(server.address());
  one.check_fetched();
  CHECK(server.requests().at(0).from == 5000);
}

TEST_CASE("a part that does not belong to the file is downloaded anew") {
  const DownloadCase one;
  const auto good = [&](const Request& request) { return part_of(one.file, request); };
  SECTION("other bytes") { one.start_part("\x1f" + std::string(999, 'x')); }
  SECTION("other bytes, all of them") { one.start_part("\x1f" + one.file.substr(0, one.file.size() - 1)); }
  SECTION("more than the file has") { one.start_part(one.file + "more"); }
  const LocalServer server(good);
  one.fetch(server.address());
  one.check_fetched();
  CHECK_FALSE(server.requests().back().from);
}

TEST_CASE("a complete part is only checked") {
  const DownloadCase one;
  one.start_part(one.file);
  const LocalServer server([&](const Request&) { return Reply{""}; });
  one.fetch(server.address());
  one.check_fetched();
  CHECK(server.requests().empty());
}

TEST_CASE("a server without the requested range is asked for the whole file") {
  const DownloadCase one;
  one.start_part(one.file.substr(0, 5000));
  const LocalServer server([&](const Request& request) {
    return request.from ? Reply{"", "416 Range Not Satisfiable"} : Reply{one.file};
  });
  one.fetch(server.address());
  one.check_fetched();
}

TEST_CASE("a part that is not the requested range is never added to the file") {
  const DownloadCase one;
  const std::string first = "5000", last = std::to_string(one.file.size() - 1), total = std::to_string(one.file.size());
  const auto header = [](const std::string& value) { return "Content-Range: " + value + "\r\n"; };
  for (const std::string& headers :
       {std::string(), header("bytes 0-" + last + "/" + total), header("bytes 4999-" + last + "/" + total),
        header("bytes 5001-" + last + "/" + total), header("bytes 5000-" + last + "/" + total + "0"),
        header("bytes 5000-6000/" + total), header("bytes 5000-" + total + "/" + total), header("bytes 5000-6000/*"),
        header("bytes */" + total), header("items 5000-" + last + "/" + total),
        header("bytes=5000-" + last + "/" + total), header("bytes 5000-" + last),
        header("bytes 5000-" + last + "/" + total + ", 0-1/2"),
        header("bytes 18446744073709556616-" + last + "/" + total), header("bytes -5000-" + last + "/" + total),
        header(""), header("bytes 5000-" + last + "/" + total) + header("bytes 0-" + last + "/" + total)}) {
    INFO(headers);
    fs::remove(one.path());
    one.start_part(one.file.substr(0, 5000));
    const LocalServer server([&](const Request& request) {
      return request.from ? Reply{one.file.substr(0, one.file.size() - 5000), "206 Partial Content", headers}
                          : Reply{one.file};
    });
    one.fetch(server.address());
    one.check_fetched();
    REQUIRE(server.requests().size() == 2);  // the checksum did not have to notice
    CHECK(server.requests()[0].from == 5000);
    CHECK_FALSE(server.requests()[1].from);
  }
  fs::remove(one.path());
  one.start_part(one.file.substr(0, 5000));
  const LocalServer unknown_total([&](const Request& request) {
    return Reply{one.file.substr(*request.from), "206 Partial Content", header("bytes " + first + "-" + last + "/*")};
  });
  one.fetch(unknown_total.address());
  one.check_fetched();
  CHECK(unknown_total.requests().size() == 1);
}

TEST_CASE("a server that sends parts of the file only is refused, with what it sent") {
  const DownloadCase one;
  std::string headers;
  const LocalServer server([&](const Request&) { return Reply{one.file, "206 Partial Content", headers}; });
  CHECK_THAT(
      one.refusal(server.address(), dp::ErrorCode::data),
      Catch::Contains("a part without its range instead of the whole file of " + std::to_string(one.file.size())));
  CHECK_FALSE(fs::exists(one.part()));
  headers = "Content-Range: bytes 7-9/10\r\n";
  one.start_part(one.file.substr(0, 5000));
  CHECK_THAT(one.refusal(server.address(), dp::ErrorCode::data),
             Catch::Contains("the server sent 'bytes 7-9/10' instead"));
  CHECK(server.requests().size() == 3);
}

TEST_CASE("HTTP errors, also behind a redirect, are reported with the address") {
  const DownloadCase one;
  const LocalServer server([&](const Request& request) {
    if (request.path == "/moved/data.gz") return Reply{"", "302 Found", "Location: /gone\r\n"};
    if (request.path == "/round/data.gz") return Reply{"", "302 Found", "Location: /round/data.gz\r\n"};
    return Reply{"<html>not here</html>", "404 Not Found"};
  });
  for (const char* folder : {"", "moved"}) {
    const std::string error = one.refusal(server.address() + folder, dp::ErrorCode::io);
    CHECK_THAT(error, Catch::Contains("404") && Catch::Contains("--mirror"));
  }
  CHECK(server.requests().size() == 3);
  CHECK_THAT(one.refusal(server.address() + "round", dp::ErrorCode::io), Catch::Contains("redirects"));
  CHECK(server.requests().size() == 3 + 6);
  CHECK_FALSE(fs::exists(one.part()));
}

TEST_CASE("redirects are followed") {
  const DownloadCase one;
  const LocalServer server([&](const Request& request) {
    if (request.path == "/data.gz") return Reply{"<html>moved</html>", "301 Moved Permanently", "Location: /there\r\n"};
    return part_of(one.file, request);
  });
  one.fetch(server.address());
  one.check_fetched();
}

TEST_CASE("a web page instead of the file is recognised, and leaves the part as it is") {
  const DownloadCase one;
  one.start_part(one.file.substr(0, 5000));
  const LocalServer server([&](const Request&) { return Reply{"<!DOCTYPE html><html>log in</html>"}; });
  CHECK_THAT(one.refusal(server.address(), dp::ErrorCode::data), Catch::Contains("web page"));
  CHECK(read_text(one.part()) == one.file.substr(0, 5000));
}

TEST_CASE("other data, and more data than the file has, are refused") {
  const DownloadCase one;
  std::string body;
  const LocalServer server([&](const Request&) { return Reply{body}; });
  body = "PK\x03\x04";
  CHECK_THAT(one.refusal(server.address(), dp::ErrorCode::data), Catch::Contains("no gzip file"));
  body = one.file + "x";
  CHECK_THAT(one.refusal(server.address(), dp::ErrorCode::data), Catch::Contains("more than the "));
  CHECK_FALSE(fs::exists(one.part()));
  body = one.file;
  body.back() ^= 1;
  CHECK_THAT(one.refusal(server.address(), dp::ErrorCode::data),
             Catch::Contains("checksum " + digest(body)) && Catch::Contains(digest(one.file)));
  CHECK_FALSE(fs::exists(one.part()));
  body.resize(1000);
  CHECK_THAT(one.refusal(server.address(), dp::ErrorCode::io), Catch::Contains("1000 of "));
}

TEST_CASE("a server that stalls is given up, and the part stays") {
  const DownloadCase one;
  one.start_part(one.file.substr(0, 5000));
  const LocalServer server([&](const Request& request) {
    Reply reply = part_of(one.file, request);
    reply.sent = 60000, reply.stalls = true;
    return reply;
  });
  std::string error;
  // A slow client may fail to connect in the two seconds, or may receive less.
  for (int tries = 0; tries < 5 && error.find("too slow") == std::string::npos; ++tries)
    error = one.refusal(server.address(), dp::ErrorCode::io, /*patience=*/2);
  CHECK_THAT(error, Catch::Contains("too slow"));
  const std::string part = read_text(one.part());
  CHECK(part.size() >= 5000);
  CHECK(one.file.starts_with(part));
}

TEST_CASE("the next mirror continues where the first failed") {
  DownloadCase one;
  const LocalServer first([&](const Request&) { return Reply{.body = one.file, .sent = 60000}; });
  const LocalServer second([&](const Request& request) { return part_of(one.file, request); });
  one.source.mirrors = {first.address(), second.address()};
  dp_train::fetch(one.source, {.data_path = one.temp.path(), .quiet = true}, one.stop);
  one.check_fetched();
  CHECK(second.requests().at(0).from == 60000);
}

TEST_CASE("a stop ends the transfer and keeps the part") {
  DownloadCase one;
  const LocalServer server([&](const Request&) { return Reply{.body = one.file, .sent = 60000, .stalls = true}; });
  std::thread stopper([&] {
    while (!fs::exists(one.part()) || fs::file_size(one.part()) < 60000) std::this_thread::yield();
    one.stop = 2;
  });
  one.fetch(server.address());
  stopper.join();
  CHECK(fs::file_size(one.part()) == 60000);
  CHECK_FALSE(fs::exists(one.path()));
}

TEST_CASE("a mirror needs an address of http or https, and one folder one download") {
  const DownloadCase one;
  for (const char* mirror : {"", "here", "ftp://127.0.0.1/", "file:///tmp/", "me:secret@here", "ftp://me:secret@here/"})
    CHECK(one.refusal(mirror, dp::ErrorCode::usage) == "--mirror: the address must begin with http:// or https://");
  for (const char* mirror :
       {"http://me:se cret@here", "http://me:se'cret@here", "https://me:se\"cret@here", "http://a\n.b/"})
    CHECK_THAT(one.refusal(mirror, dp::ErrorCode::usage),
               Catch::Contains("write it as %20") && !Catch::Contains("cret"));
  fs::create_directories(one.temp / "MNIST/raw");
  dp_train::File folder(one.temp / "MNIST/raw", O_RDONLY | O_DIRECTORY);
  REQUIRE(folder.lock());
  CHECK_THAT(one.refusal("http://127.0.0.1:9/", dp::ErrorCode::usage), Catch::Contains("another process"));
}

TEST_CASE("the official files go where the data sets look for them") {
  for (const Source& source : dp_train::sources()) {
    INFO(source.dataset);
    const TemporaryFolder temp;
    const fs::path folder = fs::path(temp.path()) / source.folder;
    fs::create_directories(folder);
    const bool images = source.unpacked.empty();
    for (const dp_train::UnpackedFile& file : source.unpacked) {
      write_text(folder / file.name, "");
      fs::resize_file(folder / file.name, file.bytes);
    }
    const std::map<std::string, std::string> tiny{{"train-images-idx3-ubyte.gz", idx_images(64)},
                                                  {"train-labels-idx1-ubyte.gz", idx_labels(64)},
                                                  {"t10k-images-idx3-ubyte.gz", idx_images(40)},
                                                  {"t10k-labels-idx1-ubyte.gz", idx_labels(40)}};
    if (images)
      for (const dp_train::RemoteFile& file : source.files) write_text(folder / file.name, gzip(tiny.at(file.name)));
    const dp::DatasetPair pair = dp::datasets::find(source.dataset).open(temp.path(), 42);
    CHECK(pair.test->size() == (images ? 40 : 10000));
    for (const dp_train::RemoteFile& file : source.files)
      CHECK((file.checksum.size() == 32 || file.checksum.size() == 64));
    // Nothing is requested for a data set that is there.
    const std::atomic<int> stop{0};
    if (!images)
      dp_train::fetch(source, {.data_path = temp.path(), .mirror = "http://127.0.0.1:9/", .quiet = true}, stop);
  }
}

// The bytes of the official file: GNU gzip's level 6, with another name and an old date in the header.
std::string official_file(const std::string& path, const std::string& name, std::uint32_t date) {
  const TemporaryFolder temp;
  const std::string command = "gzip -dc '" + path + "' | gzip -n -6 >" + temp.path() + "/packed";
  if (std::system(command.c_str()) != 0) return "";
  std::string header("\x1f\x8b\x08\x08", 4);
  for (const int shift : {0, 8, 16, 24}) header += static_cast<char>(date >> shift);
  return header + std::string("\0\x03", 2) + name + '\0' + read_text(temp / "packed").substr(10);
}

TEST_CASE("the official MNIST files have the checksums of the table, and a newcomer who fetches them can train") {
  const char* real = std::getenv("DP_TEST_DATA");
  if (!real || !fs::exists(std::string(real) + "/mnist")) DP_SKIP("DP_TEST_DATA names no folder with mnist/ in it");
  std::map<std::string, std::string> files;
  for (const auto& [part, kind, date] : {std::tuple{"train-images", "idx3-ubyte", 848331386u},
                                         {"train-labels", "idx1-ubyte", 848331398u},
                                         {"t10k-images", "idx3-ubyte", 885827245u},
                                         {"t10k-labels", "idx1-ubyte", 885827268u}}) {
    const std::string name = std::string(part) + "-" + kind + ".gz";
    files["/" + name] = official_file(std::string(real) + "/mnist/" + name, std::string(part) + "." + kind, date);
  }
  const Source& source = dp_train::source("mnist");
  if (files.begin()->second.size() != source.files[2].bytes) DP_SKIP("this gzip does not compress as GNU gzip does");
  const LocalServer server([&](const Request& request) { return part_of(files.at(request.path), request); });
  const TemporaryFolder temp;
  const Outcome fetched =
      Program({"fetch", "mnist", "--mirror", server.address()}, temp.path(), {"no_proxy=127.0.0.1"}).wait();
  INFO(fetched.err);
  CHECK(fetched.code == 0);
  CHECK_THAT(fetched.out, Catch::EndsWith("train on it with: dp_train --dataset mnist\n"));
  const Outcome trained = run_dp_train({"--dataset", "mnist", "--cpu", "1", "--max-steps", "2"}, temp.path());
  INFO(trained.err);
  CHECK(trained.code == 0);
  CHECK_THAT(trained.out, Catch::Contains("data: 60,000 training and 10,000 test images"));
}

}  // namespace
