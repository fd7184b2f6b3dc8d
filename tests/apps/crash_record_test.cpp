// crash.json: what a crash or a stall leaves behind, from dp_train and from a process of another program.
#include <dp/crash_record.h>
#include <dp/error.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "engine/observe/crash_record.h"
#include "support/catch.h"
#include "support/patience.h"
#include "support/sanitized.h"

namespace {
std::atomic<bool> crashing{false};
}  // namespace

// A process that allocates while it crashes ends with status 99.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" void* __libc_malloc(std::size_t bytes);
extern "C" void* malloc(std::size_t bytes) {
  if (crashing.load()) ::_exit(99);
  return ::__libc_malloc(bytes);
}
#endif

namespace {

namespace fs = std::filesystem;
using namespace dp::test;
using Json = nlohmann::json;

const Words kRun{"--dataset", "mnist",        "--data-path", ".",         "--model", "mlp", "-b",
                 "16",        "--epochs",     "3",           "--no-eval", "-p",      "1",   "--save-every",
                 "1,1steps",  "--output-dir", "run"};

Json crash_of(const TemporaryFolder& temp, const std::string& file = "run/crash.json") {
  const std::string text = read_text(temp / file);
  CHECK(text.size() <= 65536);
  return Json::parse(text);
}

const std::string kStacks = fs::path(DP_TRAIN_PATH).parent_path() / "dp_stacks";

bool names_threads() { return fs::exists(kStacks); }

bool has_frame(const Json& thread, const std::string& part) {
  return std::ranges::any_of(
      thread["stack"], [&](const Json& frame) { return frame.get<std::string>().find(part) != std::string::npos; });
}

const Json* thread_named(const Json& crash, const std::string& name) {
  for (const Json& thread : crash["threads"])
    if (thread["name"] == name) return &thread;
  return nullptr;
}

// The wait status of a child that does `work`.
template <typename Work>
int status_of_child(Work work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

int signal_of(int status) { return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status); }

}  // namespace

TEST_CASE("crashes: the record has the stacks of all threads, the last operations of each replica, and the options") {
  for (const int number : {SIGSEGV, SIGABRT}) {
    const TemporaryFolder temp;
    write_tiny_mnist(temp.path());
    const std::string action = number == SIGSEGV ? "segv" : "abort";
    const Outcome outcome = Program(kRun + kDp, temp.path(), {"DP_FAIL=" + action + ":backward:dev1:step9"}).wait();
    INFO(outcome.err);
    CHECK(outcome.signal == number);
    const Json crash = crash_of(temp);
    CHECK(crash["what"].get<std::string>().starts_with(number == SIGSEGV ? "SIGSEGV" : "SIGABRT"));
    CHECK(crash["run"]["options"]["model"] == "mlp");
    CHECK(crash["run"]["environment"]["program"].get<std::string>().starts_with("dp_train "));
    REQUIRE(crash["replicas"].size() == 2);
    for (const Json& replica : crash["replicas"]) {
      REQUIRE(replica["recent"].size() == 64);
      std::int64_t age = 0;
      bool transfers = false;
      for (const Json& one : replica["recent"]) {
        CHECK((replica["replica"] != 1 || one["us_ago"] >= age));  // the other one still runs
        CHECK(one["bytes"] >= 0);
        age = one["us_ago"], transfers = transfers || one.contains("bucket");
      }
      CHECK(transfers);
    }
    const bool second = crash["replicas"][1]["replica"] == 1;  // they come in the order in which their threads started
    const Json& replica = crash["replicas"][second ? 1 : 0];
    CHECK(replica["replica"] == 1);
    CHECK(replica["recent"][0]["step"] == 9);
    CHECK(replica["phase"] == "backward");
    const std::string status = run_dp_train({"status", "run"}, temp.path()).out;
    CHECK(status.find("note        crashed at 20") != std::string::npos);
    CHECK(run_dp_train({"report", "run"}, temp.path()).code == 0);
    const std::string page = read_text(temp / "run/report.html");
    CHECK(page.find("last operations, newest first") != std::string::npos);
    if (!names_threads()) continue;
    const Json& crashed = crash["threads"][0];
    CHECK(crashed["thread"] == crash["thread"]);
    CHECK(crashed["name"] == "worker 1");
    CHECK(has_frame(crashed, "dp::engine::Worker::"));
    CHECK_FALSE(has_frame(crashed, "add_stacks"));
    CHECK(thread_named(crash, "signals") != nullptr);
    CHECK(thread_named(crash, "watchdog") != nullptr);
    CHECK(page.find("thread worker 1, which crashed") != std::string::npos);
    CHECK(outcome.err.find("crashed in thread 'worker 1'; see run/crash.json") != std::string::npos);
  }
}

TEST_CASE("crashes: a stall that the watchdog reports is recorded") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const Outcome outcome = Program(kRun + kDp + Words{"--timeout", "2"}, temp.path(),
                                  {StallGate(temp / "gate").variable(), "DP_FAIL=stall:reduce:dev0:step3:600000ms"})
                              .wait();
  INFO(outcome.err);
  CHECK(outcome.code == 6);
  const Json crash = crash_of(temp);
  CHECK(crash["what"].get<std::string>().find("replica 0 (cpu") != std::string::npos);
  CHECK(crash["thread"] == 0);
  CHECK(crash["replicas"].size() == 2);
  CHECK(run_dp_train({"status", "run"}, temp.path()).out.find("note        stalled at 20") != std::string::npos);
}

TEST_CASE("crashes: the record of a stall has the stacks of all threads") {
  if (!names_threads()) DP_SKIP("dp_stacks was not built");
  const TemporaryFolder temp;
  const int status = status_of_child([&] {
    dp::record_crashes({temp / "crash.json", kStacks});
    std::atomic<bool> named{false}, over{false};
    std::thread stalled([&] {
      ::pthread_setname_np(::pthread_self(), "stalled");
      for (named = true; !over;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    while (!named) std::this_thread::yield();
    dp::engine::record_stall("a test", /*seconds=*/600);
    over = true;
    stalled.join();
  });
  CHECK(status == 0);
  const Json crash = crash_of(temp, "crash.json");
  CHECK(crash["what"] == "a test");
  REQUIRE(thread_named(crash, "stalled") != nullptr);
  CHECK_FALSE((*thread_named(crash, "stalled"))["stack"].empty());
}

TEST_CASE("crashes: each rank has a record of its own") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const Outcome outcome = Program(kRun + kDdp, temp.path(), {"DP_FAIL=segv:backward:dev1:step3"}).wait();
  INFO(outcome.err);
  CHECK(outcome.code == 128 + SIGSEGV);
  CHECK_FALSE(fs::exists(temp / "run/crash.json"));
  const Json crash = crash_of(temp, "run/crash.rank1.json");
  CHECK(crash["replicas"][0]["replica"] == 1);
  const Json& environment = crash["run"]["environment"];
  CHECK(environment["program"].get<std::string>().starts_with("dp_train "));
  CHECK_FALSE(environment.contains("command"));  // it may contain secrets
  CHECK(run_dp_train({"status", "run"}, temp.path()).out.find("crashed at 20") != std::string::npos);
}

TEST_CASE("crashes: every fatal signal ends the process as without a record, and recording allocates nothing") {
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    INFO("signal " << number);
    const TemporaryFolder temp;
    const int status = status_of_child([&] {
      dp::record_crashes({temp / "crash.json", ""});
      crashing = true;
      ::raise(number);
    });
    CHECK(signal_of(status) == number);
    const Json crash = crash_of(temp, "crash.json");
    CHECK(crash["run"].is_null());
    CHECK(crash["replicas"].empty());
    REQUIRE(crash["stack"].size() > 2);
    CHECK(crash["stack"].back().get<std::string>().find("+0x") != std::string::npos);
  }
}

TEST_CASE("crashes: the address of an invalid access is recorded") {
  if (kSanitized) DP_SKIP("the sanitizer reports the access itself");
  const TemporaryFolder temp;
  const int status = status_of_child([&] {
    dp::record_crashes({temp / "crash.json", ""});
    *reinterpret_cast<volatile int*>(std::uintptr_t{0x1230}) = 1;  // NOLINT: an invalid address is the point
  });
  CHECK(signal_of(status) == SIGSEGV);
  CHECK(crash_of(temp, "crash.json")["address"] == "0x1230");
}

TEST_CASE("crashes: an uncaught exception is recorded with its text") {
  const TemporaryFolder temp;
  const int status = status_of_child([&] {
    dp::record_crashes({temp / "crash.json", ""});
    std::thread([] { throw std::runtime_error("the \"text\"\n of it"); }).join();
  });
  CHECK(signal_of(status) == SIGABRT);
  const std::string what = crash_of(temp, "crash.json")["what"];
  CHECK(what == "uncaught exception: the ?text?? of it");
}

TEST_CASE("crashes: threads that crash at the same time leave one valid record") {
  const TemporaryFolder temp;
  const int status = status_of_child([&] {
    dp::record_crashes({temp / "crash.json", ""});
    std::atomic<int> ready{0};
    const auto crash = [&] {
      ++ready;
      while (ready < 4) std::this_thread::yield();
      ::raise(SIGSEGV);
    };
    std::thread a(crash), b(crash), c(crash);
    crash();
    a.join(), b.join(), c.join();
  });
  CHECK(signal_of(status) == SIGSEGV);
  CHECK(crash_of(temp, "crash.json")["stack"].size() > 2);
}

TEST_CASE("crashes: a folder that does not exist, or a program that does not start, changes nothing") {
  const TemporaryFolder temp;
  const int status = status_of_child([&] {
    dp::record_crashes({temp / "none/crash.json", temp / "none/dp_stacks"});
    ::raise(SIGSEGV);
  });
  CHECK(signal_of(status) == SIGSEGV);
  CHECK_FALSE(fs::exists(temp / "none"));
  CHECK_THROWS_AS(dp::record_crashes({std::string(4096, 'a'), ""}), dp::Error);
}

TEST_CASE("crashes: a thread that crashes while a stall is recorded is recorded afterwards") {
  const TemporaryFolder temp;
  const std::string slow = temp / "slow";
  std::ofstream(slow) << "#!/bin/sh\ntouch '" << temp / "begun"
                      << "'\nsleep 0.3\n";
  fs::permissions(slow, fs::perms::owner_all);
  const int status = status_of_child([&] {
    dp::record_crashes({temp / "crash.json", slow});
    std::thread stalled([] { dp::engine::record_stall("stalled", kPatience.count()); });
    while (!fs::exists(temp / "begun")) std::this_thread::yield();
    ::raise(SIGSEGV);
    stalled.join();
  });
  CHECK(signal_of(status) == SIGSEGV);
  CHECK(crash_of(temp, "crash.json")["what"] == "SIGSEGV (invalid memory reference)");
}
