// dp_train fetch: exit codes, messages, signals.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <functional>

#include "apps/dp_train/fetch/fetch.h"
#include "apps/ends.h"
#include "apps/fetch/local_server.h"
#include "apps/run_program.h"
#include "support/catch.h"
#include "support/patience.h"
#include "support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

const Words kDirect{"no_proxy=127.0.0.1"};
const std::string kPart = "datasets/MNIST/raw/train-images-idx3-ubyte.gz.part";

Words fetch_from(const LocalServer& server) { return {"fetch", "mnist", "--mirror", server.address()}; }

// As many bytes as the first file of MNIST has.
const std::string& wrong_bytes() {
  static const std::string bytes = "\x1f\x8b" + std::string(dp_train::source("mnist").files[0].bytes - 2, 'x');
  return bytes;
}

TEST_CASE("dp_train fetch ends with 3 for wrong data and 7 for a broken network, in one line") {
  struct Row {
    Reply reply;
    int code;
    std::vector<std::string> fragments;
    bool part;  // stays
  };
  for (const Row& row :
       {Row{{wrong_bytes()},
            3,
            {"checksum", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", "--mirror"},
            false},
        Row{{"\n<html>log in</html>"}, 3, {"no gzip file", "--mirror"}, false},
        Row{{"<html>log in</html>"}, 3, {"web page", "--mirror"}, false},
        Row{{"", "503 Service Unavailable"}, 7, {"503", "--mirror"}, false},
        Row{{.body = wrong_bytes(), .sent = 200000}, 7, {"run the command again", "200000 bytes", kPart}, true}}) {
    const LocalServer server([&](const Request&) { return row.reply; });
    const TemporaryFolder temp;
    const Outcome outcome = Program(fetch_from(server), temp.path(), kDirect).wait();
    INFO(outcome.err);
    CHECK(outcome.code == row.code);
    CHECK(outcome.out.empty());
    CHECK(outcome.err.starts_with("dp_train: error: fetch mnist: " + server.address() + "train-images"));
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
    for (const std::string& fragment : row.fragments) CHECK_THAT(outcome.err, Catch::Contains(fragment));
    CHECK(fs::exists(temp / kPart) == row.part);
  }
}

TEST_CASE("dp_train fetch prints no password of a mirror or proxy") {
  struct Row {
    std::string mirror;
    Words variables;
  };
  const LocalServer server([&](const Request& request) {
    return request.path.starts_with("/moved") ? Reply{"", "302 Found", "Location: ftp://me:secret@127.0.0.1/x\r\n"}
                                              : Reply{"", "404 Not Found"};
  });
  const std::string place = server.address().substr(7);
  for (const Row& row :
       {Row{"http://me:secret@" + place, kDirect}, Row{"http://secret@" + place + "moved", kDirect},
        Row{"http://me:secret@127.0.0.1:9/", kDirect}, Row{"http://me:secret@[::1/", kDirect},
        Row{"http://me:secret@127.0.0.1:99999/", kDirect}, Row{server.address() + "x?key=secret&", kDirect},
        Row{"http://127.0.0.1:9/", {"http_proxy=http://me:secret@127.0.0.1:9/"}},
        Row{"http://127.0.0.1:9/", {"http_proxy=me:secret@127.0.0.1:9"}},
        Row{"http://127.0.0.1:9/", {"http_proxy=odd://me:secret@127.0.0.1:9"}},
        Row{"http://127.0.0.1:9/", {"http_proxy=me:secret@127.0.0.1:99999"}},
        Row{"https://127.0.0.1:9/", {"https_proxy=me:secret@[::1"}},
        Row{"http://127.0.0.1:9/", {"ALL_PROXY=socks9://me:secret@127.0.0.1:9"}}}) {
    const TemporaryFolder temp;
    const Outcome outcome = Program({"fetch", "mnist", "--mirror", row.mirror}, temp.path(), row.variables).wait();
    INFO(row.mirror << ": " << outcome.err);
    CHECK(outcome.code == 7);
    CHECK((outcome.out + outcome.err).find("secret") == std::string::npos);
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  }
}

TEST_CASE("dp_train fetch reports a file that cannot be written") {
  const LocalServer server([&](const Request&) { return Reply{wrong_bytes()}; });
  const TemporaryFolder temp;
  const Words limit{"/bin/sh", "-c", "ulimit -f 64 && exec \"$@\"", "sh"};
  const Outcome full = Program(fetch_from(server), temp.path(), kDirect, limit).wait();
  INFO(full.err);
  CHECK(full.code == 7);
  CHECK_THAT(full.err, Catch::Contains(kPart + ": write failed: "));
  CHECK(fs::exists(temp / kPart));
  write_text(temp / "file", "");
  const Outcome no_folder = Program(fetch_from(server) + Words{"--data-path", "file"}, temp.path(), kDirect).wait();
  INFO(no_folder.err);
  CHECK(no_folder.code == 7);
  CHECK_THAT(no_folder.err, Catch::Contains("file/MNIST"));
}

// Signals the program once `blocked()`.
void check_interrupted(Program& program, int number, Ends& ends, const std::function<bool()>& blocked) {
  const auto begin = std::chrono::steady_clock::now();
  while (!blocked() && in_time(begin, 2)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(blocked());
  ::kill(program.id(), number);
  const bool ended = ends.of(program, "fetch");
  CHECK(ended);
  if (!ended) ::kill(program.id(), SIGKILL);
  const Outcome outcome = program.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 128 + number);
  CHECK_THAT(outcome.err, Catch::Contains("stopping\n") && !Catch::Contains("error"));
}

TEST_CASE("dp_train fetch ends within two seconds after a signal and keeps the part") {
  Ends ends;
  for (const int number : {SIGINT, SIGTERM}) {
    const LocalServer server(
        [&](const Request&) { return Reply{.body = wrong_bytes(), .sent = 200000, .stalls = true}; });
    const TemporaryFolder temp;
    Program program(fetch_from(server), temp.path(), kDirect);
    check_interrupted(program, number, ends,
                      [&] { return fs::exists(temp / kPart) && fs::file_size(temp / kPart) == 200000; });
    CHECK(fs::file_size(temp / kPart) == 200000);
  }
}

TEST_CASE("dp_train fetch ends within two seconds while no name server answers") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  DP_SKIP("the sanitizers' runtimes must be loaded first");
#else
  Ends ends;
  for (const int number : {SIGINT, SIGTERM}) {
    const TemporaryFolder temp;
    Program program({"fetch", "mnist", "--mirror", "http://name.invalid/"}, temp.path(),
                    {"no_proxy=name.invalid", "LD_PRELOAD=" DP_STANDING_CALLS, "DP_STANDS_AT=getaddrinfo:name.invalid",
                     "DP_STANDS_FILE=" + (temp / "stands")});
    check_interrupted(program, number, ends, [&] { return fs::exists(temp / "stands"); });
  }
#endif
}

TEST_CASE("dp_train fetch refuses what it does not use") {
  const TemporaryFolder temp;
  for (const BadInput& row :
       {BadInput{{"fetch"}, 2, {"fetch requires a data set"}}, BadInput{{"fetch", "imagenet"}, 2, {"cifar100"}},
        BadInput{{"fetch", "mnist", "--epochs", "3"}, 2, {"--epochs is not an option of fetch"}},
        BadInput{{"fetch", "mnist", "--mirror", ""}, 2, {"--mirror: it is empty; name an address"}},
        BadInput{
            {"fetch", "mnist", "--mirror", "files"}, 2, {"--mirror: the address must begin with http:", "http://"}}})
    check_bad_input(row, temp.path());
  CHECK_FALSE(fs::exists(temp / "datasets"));
}

// A copy of dp_train in bin/, started with these arguments.
Outcome run_copy(const TemporaryFolder& temp, const Words& words) {
  return Program(words, temp.path(), {}, {"/bin/sh", "-c", "shift; exec ./bin/dp_train \"$@\"", "sh"}).wait();
}

void write_script(const std::string& file, const std::string& text) {
  fs::create_directories(fs::path(file).parent_path());
  write_text(file, "#!/bin/sh\n" + text + "\n");
  fs::permissions(file, fs::perms::owner_all);
}

TEST_CASE("dp_train fetch starts dp_fetch from its own folder or from ../lib/dp and passes all arguments") {
  const TemporaryFolder temp;
  fs::create_directory(temp / "bin");
  fs::copy_file(DP_TRAIN_PATH, temp / "bin/dp_train");
  const Outcome without = run_copy(temp, {"fetch", "cifar10"});
  CHECK(without.code == 2);
  CHECK(without.err == "dp_train: error: fetch: the program dp_fetch is not in " +
                           fs::canonical(temp / "bin").string() +
                           "; install libcurl and libarchive and build again, or download by hand: "
                           "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz\n");
  write_script(temp / "lib/dp/dp_fetch", "for word in \"$@\"; do echo \"[$word]\"; done");
  CHECK(run_copy(temp, {"fetch", "mnist"}).out == "[mnist]\n[./datasets]\n[]\n[]\n[progress]\n");
  CHECK(run_copy(temp, {"fetch", "cifar10", "--data-path", "d", "--mirror", "http://a/", "--quiet", "--no-progress"})
            .out == "[cifar10]\n[d]\n[http://a/]\n[quiet]\n[]\n");
  write_script(temp / "bin/dp_fetch", "echo beside");
  CHECK(run_copy(temp, {"fetch", "mnist"}).out == "beside\n");
}

TEST_CASE("dp_fetch alone refers to dp_train") {
  const TemporaryFolder temp;
  const Outcome alone = Program({}, temp.path(), {}, {"/bin/sh", "-c", "exec \"${1%/*}/dp_fetch\"", "sh"}).wait();
  CHECK(alone.code == 2);
  CHECK(alone.err == "dp_train: error: dp_fetch is a part of dp_train; call dp_train fetch\n");
}

}  // namespace
