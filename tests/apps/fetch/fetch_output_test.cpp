// What a download prints, the table of the official files, and errors of files.
#include <fcntl.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "apps/dp_train/fetch/fetch.h"
#include "apps/dp_train/fetch/files.h"
#include "apps/fetch/local_server.h"
#include "apps/fetch/output_into.h"
#include "apps/idx_files.h"
#include "dp/error.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

// A data set of one small file.
struct OutputCase {
  OutputCase() {
    file = gzip(std::string(1000, 'x') + "rest");
    if (file.size() % 2 == 1) file += '\0';
    write_text(temp / "copy", file);
    source = {"mnist", {}, "MNIST/raw", {{"data.gz", file.size(), dp_train::checksum(temp / "copy", 64)}}};
    fs::create_directories(temp / "MNIST/raw");
    ::setenv("no_proxy", "127.0.0.1", 1);
  }
  void fetch(dp_train::FetchOptions options) const {
    if (options.data_path.empty()) options.data_path = temp.path();
    dp_train::fetch(source, options, stop);
  }
  // What `work` writes to this descriptor.
  std::string written(int descriptor, const std::function<void()>& work) const {
    const std::string into = temp / "written";
    fs::remove(into);
    {
      const OutputInto file_instead(descriptor, into);
      work();
    }
    return read_text(into);
  }

  TemporaryFolder temp;
  std::string file;
  dp_train::Source source;
  std::atomic<int> stop{0};
  std::string path() const { return temp / "MNIST/raw/data.gz"; }
};

TEST_CASE("a download prints the address of each file and the command that trains on the data set") {
  const OutputCase one;
  const LocalServer server([&](const Request& request) { return part_of(one.file, request); });
  const std::string address = server.address(), bare = address.substr(0, address.size() - 1);
  const std::string train = "train on it with: dp_train --dataset mnist";
  const auto printed = [&](const dp_train::FetchOptions& options) {
    return one.written(STDOUT_FILENO, [&] { one.fetch(options); });
  };
  CHECK(printed({.mirror = bare}) ==
        one.path() + "  from " + address + "data.gz\n" + train + " --data-path " + one.temp.path() + "\n");
  CHECK(printed({.mirror = address}) ==
        one.path() + "  already there\n" + train + " --data-path " + one.temp.path() + "\n");
  CHECK(printed({.mirror = address, .quiet = true}).empty());
  CHECK(server.requests().size() == 1);
  const fs::path before = fs::current_path();
  fs::current_path(one.temp.path());
  CHECK(printed({.data_path = "./datasets", .mirror = address}) ==
        "./datasets/MNIST/raw/data.gz  from " + address + "data.gz\n" + train + "\n");
  fs::current_path(before);
}

TEST_CASE("a quiet download warns about a replaced file and a failed mirror") {
  OutputCase one;
  const LocalServer first([](const Request&) { return Reply{"", "404 Not Found"}; });
  const LocalServer second([&](const Request& request) { return part_of(one.file, request); });
  one.source.mirrors = {first.address(), second.address()};
  write_text(one.path(), "other");
  const std::string text = one.written(STDERR_FILENO, [&] { one.fetch({.quiet = true}); });
  INFO(text);
  const std::string title = "dp_train: warning: fetch mnist: ";
  CHECK_THAT(text, Catch::StartsWith(title + one.path() + " is not the official file and is replaced\n" + title +
                                     first.address() + "data.gz: ") &&
                       Catch::Contains("404") && Catch::EndsWith("; trying " + second.address() + "\n"));
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
  CHECK(read_text(one.path()) == one.file);
}

TEST_CASE("a stopped download prints the partial file that it will continue, and no training command") {
  OutputCase one;
  const LocalServer server([&](const Request& request) { return part_of(one.file, request); });
  one.stop = 2;
  std::string out;
  const std::string text = one.written(STDERR_FILENO, [&] {
    out = OutputCase().written(STDOUT_FILENO, [&] { one.fetch({.mirror = server.address()}); });
  });
  CHECK(text == "dp_train: fetch mnist: run the command again to continue " + one.path() + ".part\n");
  CHECK(out.empty());
  CHECK_FALSE(fs::exists(one.path()));
}

// Returns what a download that continues at half of the file writes to a terminal.
std::string shown_on_a_terminal(const OutputCase& one, const dp_train::FetchOptions& options) {
  write_text(one.path() + ".part", one.file.substr(0, one.file.size() / 2));
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
  REQUIRE(terminal >= 0);
  REQUIRE(::grantpt(terminal) == 0);
  REQUIRE(::unlockpt(terminal) == 0);
  const std::string name = ::ptsname(terminal);
  const int kept = ::open(name.c_str(), O_WRONLY | O_NOCTTY);  // until everything is read
  {
    const OutputInto terminal_instead(STDOUT_FILENO, name);
    one.fetch(options);
  }
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = ::read(terminal, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  ::close(kept);
  ::close(terminal);
  return text;
}

TEST_CASE("on a terminal a download shows one progress line and erases it at the end") {
  for (const bool progress : {true, false})
    for (const bool quiet : {true, false}) {
      const OutputCase one;
      const LocalServer server([&](const Request& request) { return part_of(one.file, request); });
      const std::string text =
          shown_on_a_terminal(one, {.mirror = server.address(), .quiet = quiet, .progress = progress});
      INFO(text);
      const std::string from = one.path() + "  from ";
      if (progress && !quiet)
        CHECK_THAT(text, Catch::StartsWith("\rdata.gz   50 %  ") && Catch::Contains(" MB/s\x1b[K") &&
                             Catch::Contains("\r\x1b[K" + from));
      else
        CHECK(text.starts_with(quiet ? "" : from));
      CHECK(text.empty() == quiet);
    }
}

TEST_CASE("the official files have these addresses, sizes and checksums") {
  std::string table;
  for (const dp_train::Source& source : dp_train::sources()) {
    table += source.dataset + " in " + source.folder + "\n";
    for (const std::string& mirror : source.mirrors) table += mirror + "\n";
    for (const auto& file : source.files)
      table += file.name + " " + std::to_string(file.bytes) + " " + file.checksum + "\n";
  }
  CHECK(table == R"(mnist in MNIST/raw
https://ossci-datasets.s3.amazonaws.com/mnist/
https://storage.googleapis.com/cvdf-datasets/mnist/
train-images-idx3-ubyte.gz 9912422 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
train-labels-idx1-ubyte.gz 28881 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
t10k-images-idx3-ubyte.gz 1648877 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
t10k-labels-idx1-ubyte.gz 4542 f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6
fashion_mnist in FashionMNIST/raw
http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/
train-images-idx3-ubyte.gz 26421880 3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84
train-labels-idx1-ubyte.gz 29515 a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845
t10k-images-idx3-ubyte.gz 4422102 346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073
t10k-labels-idx1-ubyte.gz 5148 67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5
cifar10 in cifar-10-batches-bin
https://www.cs.toronto.edu/~kriz/
cifar-10-binary.tar.gz 170052171 c32a1d4ab5d03f1284b67883e8d87530
cifar100 in cifar-100-binary
https://www.cs.toronto.edu/~kriz/
cifar-100-binary.tar.gz 168513733 03b5dce01913d631647c71ecec9e9cb8
)");
  CHECK_THROWS_WITH(dp_train::source("digits"), "fetch digits: there is no address for this data set");
}

TEST_CASE("file errors have the path, the call and the reason, and a remedy for a full disk") {
  const TemporaryFolder temp;
  const std::string none = temp / "none";
  CHECK_THROWS_WITH(dp_train::checksum(none, 64), none + ": open failed: No such file or directory");
  CHECK_THROWS_WITH(dp_train::checksum(temp.path(), 64), temp.path() + ": read failed: Is a directory");
  CHECK_THROWS_WITH(dp_train::File(none, O_RDONLY), none + ": open failed: No such file or directory");
  dp_train::File full("/dev/full", O_WRONLY);
  CHECK_THROWS_WITH(full.write("x", 1),
                    "/dev/full: write failed: No space left on device; free some space and run the command again");
  CHECK_THROWS_WITH(full.clear(), "/dev/full: truncate failed: Invalid argument");
  CHECK_THROWS_WITH(full.sync(), "/dev/full: fsync failed: Invalid argument");
}

TEST_CASE("a part that is a symbolic link is not followed") {
  const OutputCase one;
  const LocalServer server([&](const Request& request) { return part_of(one.file, request); });
  write_text(one.temp / "mine", "my text");
  fs::create_symlink(one.temp / "mine", one.path() + ".part");
  CHECK_THROWS_WITH(one.fetch({.mirror = server.address(), .quiet = true}),
                    one.path() + ".part: open failed: Too many levels of symbolic links");
  CHECK(read_text(one.temp / "mine") == "my text");
  CHECK(server.requests().empty());
}

}  // namespace
