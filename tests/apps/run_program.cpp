#include "apps/run_program.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "apps/idx_files.h"
#include "apps/processes.h"
#include "support/catch.h"
#include "support/patience.h"
#include "support/temporary_folder.h"

extern char** environ;

namespace dp::test {
namespace {

namespace fs = std::filesystem;

// Returns `more` and the variables of this process that are not in `more`. No GPU is visible.
std::vector<std::string> environment(std::vector<std::string> more) {
  const auto add = [&](const std::string& variable) {
    const std::string name = variable.substr(0, variable.find('=') + 1);
    if (std::ranges::none_of(more, [&](const std::string& other) { return other.starts_with(name); }))
      more.push_back(variable);
  };
  add("CUDA_VISIBLE_DEVICES=");
  for (char** variable = environ; *variable != nullptr; ++variable) add(*variable);
  return more;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& string : strings) out.push_back(string.data());
  out.push_back(nullptr);
  return out;
}

// Peak memory of a run with tiny valid data.
std::size_t baseline_bytes() {
  static const std::size_t bytes = [] {
    const TemporaryFolder temp;
    write_tiny_mnist(temp.path());
    const Outcome good =
        run_dp_train({"--dataset", "mnist", "--data-path", temp.path(), "--dry-run", "--cpu", "1"}, temp.path());
    INFO(good.err);
    REQUIRE(good.code == 0);
    return good.peak_bytes;
  }();
  return bytes;
}

std::string shown(const std::vector<std::string>& arguments) {
  std::string line = "dp_train";
  for (const std::string& argument : arguments) line += " '" + argument + "'";
  return line;
}

}  // namespace

Program::Program(const std::vector<std::string>& arguments, const std::string& folder,
                 const std::vector<std::string>& more_variables, const std::vector<std::string>& launcher,
                 Group group) {
  static std::atomic<int> count{0};
  err_file_ = folder + "/.stderr" + std::to_string(++count);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err_file_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  std::vector<std::string> words = launcher, variables = environment(more_variables);
  words.emplace_back(DP_TRAIN_PATH);
  words.insert(words.end(), arguments.begin(), arguments.end());
  const std::string path = words.front();
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  if (group == Group::own) posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // a new process group
  const int error =
      ::posix_spawn(&id_, path.c_str(), &actions, &attributes, pointers(words).data(), pointers(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  out_ = ends[0];
  if (error != 0) throw std::runtime_error("cannot start " + path);
}

std::string Program::wait_for(const std::string& text) {
  char buffer[4096];
  while (text.empty() || read_.find(text) == std::string::npos) {
    const ssize_t got = ::read(out_, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    read_.append(buffer, static_cast<std::size_t>(got));
  }
  return read_;
}

std::string Program::error() const { return read_text(err_file_); }

std::string Program::wait_for_error(const std::string& text) const {
  std::string seen;
  becomes([&] {
    seen = read_text(err_file_);
    return seen.find(text) != std::string::npos;
  });
  return seen;
}

void Program::wait_until_signals_are_handled(int children) const {
  const auto handles = [](pid_t process) {
    std::error_code gone;
    fs::directory_iterator thread("/proc/" + std::to_string(process) + "/task", gone);
    int count = 0;
    for (; !gone && thread != fs::directory_iterator(); thread.increment(gone)) ++count;  // the process may end
    return count > 1;
  };
  becomes([&] {
    const std::vector<pid_t> processes = children > 0 ? children_of(id_) : std::vector{id_};
    return static_cast<int>(processes.size()) == std::max(children, 1) && std::ranges::all_of(processes, handles);
  });
}

void StallGate::wait_for(int replica) const {
  CHECK(becomes([&] { return fs::exists(path_ + "." + std::to_string(replica)); }));
}

void StallGate::open() const { write_text(path_ + ".open", ""); }

void StallGate::end_one(int replica) const { fs::remove(path_ + "." + std::to_string(replica)); }

void Program::stop() const {
  ::kill(id_, SIGSTOP);
  siginfo_t stopped{};
  while (::waitid(P_PID, static_cast<id_t>(id_), &stopped, WSTOPPED | WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
}

bool Program::has_ended() const {
  siginfo_t ended{};
  return ::waitid(P_PID, static_cast<id_t>(id_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid == id_;
}

bool Program::ends_within(double seconds) const {
  const auto begin = std::chrono::steady_clock::now();
  while (in_time(begin, seconds)) {
    if (has_ended()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return has_ended();
}

void Program::close_output() {
  ::close(out_);
  out_ = -1;
}

Outcome Program::wait() {
  Outcome outcome;
  outcome.out = out_ >= 0 ? wait_for("") : read_;
  if (out_ >= 0) close_output();
  int status = 0;
  rusage usage{};
  ::wait4(id_, &status, 0, &usage);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  outcome.peak_bytes = static_cast<std::size_t>(usage.ru_maxrss) * 1024;
  outcome.err = read_text(err_file_);
  ::unlink(err_file_.c_str());
  return outcome;
}

Outcome run_dp_train(const std::vector<std::string>& arguments, const std::string& folder) {
  return Program(arguments, folder).wait();
}

Outcome run_under_limit(const std::string& kibibytes, const std::vector<std::string>& arguments,
                        const std::string& folder) {
  return Program(arguments, folder, {}, {"/bin/sh", "-c", "ulimit -v " + kibibytes + " && exec \"$@\"", "sh"}).wait();
}

void check_bad_input(const BadInput& input, const std::string& folder) {
  INFO(shown(input.arguments));
  const Outcome outcome = run_dp_train(input.arguments, folder);
  INFO("stderr: " << outcome.err);
  CHECK(outcome.signal == 0);
  CHECK(outcome.code == input.code);
  CHECK(outcome.err.starts_with("dp_train: error: "));
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  CHECK(outcome.err.ends_with('\n'));
  CHECK(std::none_of(outcome.err.begin(), outcome.err.end() - !outcome.err.empty(),
                     [](char c) { return c >= 0 && c < 0x20; }));
  for (const std::string& fragment : input.fragments) {
    INFO("wanted: " << fragment);
    CHECK(outcome.err.find(fragment) != std::string::npos);
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const std::size_t allowed = baseline_bytes() + 2 * input.file_bytes + (64 << 20);
  CHECK(outcome.peak_bytes <= allowed);
#endif
}

}  // namespace dp::test
