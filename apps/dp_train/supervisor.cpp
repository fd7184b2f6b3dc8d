#include "supervisor.h"

#include <dp/error.h>
#include <dp/report.h>
#include <dp/stop_signals.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "devices.h"
#include "signals.h"
#include "trainer_options.h"

namespace dp_train {
namespace {

using Clock = std::chrono::steady_clock;

// The environment of the child, and of its ranks.
constexpr const char* kRestarts = "DP_RESTARTS";    // restarts so far
constexpr const char* kFolder = "DP_RUN_FOLDER";    // of the run
constexpr const char* kResumes = "DP_RUN_RESUMES";  // set: the child continues the run in the folder
constexpr int kCannotStart = 127;

std::string describe(int status) {
  if (status <= 128) return "exit status " + std::to_string(status);
  return "signal " + std::to_string(status - 128) + " (" + ::strsignal(status - 128) + ")";
}

// In a terminal, begins a new line, because a crash leaves the progress line open.
void say(const std::string& text) {
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const std::string line = (terminal ? "\n" : "") + program().name + ": " + dp::printable(text) + "\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

int first_pause() {
  const char* const text = std::getenv("DP_RESTART_PAUSE");
  return text == nullptr ? 1 : std::max(0, std::atoi(text));
}

class Supervisor {
 public:
  Supervisor(const Command& command, std::string folder, char* const* argv)
      : command_(command),
        folder_(std::move(folder)),
        argv_(argv),
        program_(std::filesystem::read_symlink("/proc/self/exe")),
        awaited_(stop_signals()) {
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGCHLD, SIG_DFL);                // if it were ignored, waitpid() would return no status
    ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);  // adopts ranks whose launcher was killed
    ::sigaddset(&awaited_, SIGCHLD);
    ::pthread_sigmask(SIG_BLOCK, &awaited_, &inherited_);
  }

  int run() {
    int failures = 0;  // since the last new checkpoint
    for (int restarts = 0;; ++restarts) {
      const std::int64_t before = dp::saved_step(folder_);
      start(restarts);
      const int status = wait_for_child();
      if (!may_restart(status)) return status;
      const std::int64_t step = dp::saved_step(folder_);
      if (step >= 0 && step != before) failures = 0, saved_ = true;
      record(status);
      const std::string what = "the run failed: " + describe(status);
      if (stop_ != 0 || failures == command_.max_restarts) {
        say(what + "; it is not restarted" +
            (stop_ != 0 ? "" : ": no new checkpoint since the last " + std::to_string(failures) + " restarts"));
        return status;
      }
      const int pause = pause_before(++failures, first_pause());
      say(what + "; restart " + std::to_string(failures) + " of " + std::to_string(command_.max_restarts) + " in " +
          std::to_string(pause) + " s, from step " + std::to_string(std::max<std::int64_t>(step, 0)));
      wait_for_others();
      wait(std::chrono::seconds(pause));
      if (stop_ != 0) return 128 + stop_;
    }
  }

 private:
  void start(int restarts) {
    ::setenv(kRestarts, std::to_string(restarts).c_str(), 1);
    ::setenv(kFolder, folder_.c_str(), 1);
    const std::string& resume = command_.trainer.resume;
    if (restarts > 0 && (saved_ || resume.empty() || resume == "auto")) ::setenv(kResumes, "1", 1);
    const pid_t parent = ::getpid();
    child_ = ::fork();
    if (child_ < 0) throw dp::Error(dp::ErrorCode::device, std::string("cannot fork: ") + std::strerror(errno));
    if (child_ > 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kCannotStart);
    ::pthread_sigmask(SIG_SETMASK, &inherited_, nullptr);  // the stop signals wait until the child handles them
    ::execv(program_.c_str(), argv_);
    say("cannot start " + program_.string() + ": " + std::strerror(errno));
    ::_exit(kCannotStart);
  }

  int wait_for_child() {
    int status = 0;
    while (::waitpid(child_, &status, WNOHANG) != child_) take_signal(nullptr);
    child_ = 0;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  // Waits for ranks whose launcher has ended. Until they end they hold the run's lock and its devices.
  void wait_for_others() {
    while (stop_ == 0) {
      const pid_t ended = ::waitpid(-1, nullptr, WNOHANG);
      if (ended < 0) return;
      if (ended == 0) take_signal(nullptr);
    }
  }

  void wait(std::chrono::seconds time) {
    const auto until = Clock::now() + time;
    do {
      const auto left = std::max(Clock::duration::zero(), until - Clock::now());
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
      const timespec most{seconds.count(), std::chrono::nanoseconds(left - seconds).count()};
      take_signal(&most);
    } while (stop_ == 0 && Clock::now() < until);
  }

  // Forwards the first request to stop. The child ignores it if it already has it from the terminal. A second request
  // ends this process, and the kernel then ends the child.
  void take_signal(const timespec* most) {
    const int number = ::sigtimedwait(&awaited_, nullptr, most);
    if (number <= 0 || number == SIGCHLD) return;
    if (stop_ == 0) {
      stop_ = number;
      stopped_at_ = Clock::now();
      if (child_ > 0) ::kill(child_, number);
    } else if (!same_request(stop_, number) || Clock::now() - stopped_at_ > std::chrono::seconds(1)) {
      ::_exit(128 + number);
    }
  }

  void record(int status) const {
    try {
      dp::record_failure(folder_, describe(status));
    } catch (const dp::Error& error) {
      say(error.what());
    }
  }

  const Command& command_;
  const std::string folder_;
  char* const* const argv_;
  const std::filesystem::path program_;
  sigset_t awaited_, inherited_{};
  pid_t child_ = 0;     // 0: there is none
  bool saved_ = false;  // whether a child has saved a checkpoint
  int stop_ = 0;        // the first signal that asks to stop
  Clock::time_point stopped_at_{};
};

}  // namespace

bool is_supervised() { return std::getenv(kRestarts) != nullptr; }

bool may_supervise(int argc, const char* const* argv) {
  const bool asked = std::any_of(argv, argv + argc, [](std::string word) {
    std::ranges::replace(word, '_', '-');
    return word.starts_with("--max-restarts");
  });
  if (!asked || is_supervised()) return false;
  const sigset_t stops = stop_signals();
  ::pthread_sigmask(SIG_BLOCK, &stops, nullptr);
  return true;
}

int supervise(const Command& command, char* const* argv) {
  const std::string launcher = command.nnodes > 1 ? "another host" : launcher_here();
  if (command.engine == "ddp" && !launcher.empty())
    usage("--max-restarts restarts the ranks that this process starts, but " + launcher +
          " starts ranks of this run, too; restart all of them with --resume auto");
  const OutputFolder folder = output_folder(command);
  return Supervisor(command, folder.path(), argv).run();
}

void obey_supervisor(std::map<std::string, dp::OptionValue>& given) {
  const char* const folder = std::getenv(kFolder);
  if (!is_supervised() || folder == nullptr) return;
  given.erase("experiment");
  given["output-dir"] = std::string(folder);
  if (std::getenv(kResumes) != nullptr) given["resume"] = std::string("auto");
}

bool may_restart(int status) {
  constexpr std::array kFinal{0, static_cast<int>(dp::ErrorCode::usage), static_cast<int>(dp::ErrorCode::data),
                              static_cast<int>(dp::ErrorCode::nonfinite), kCannotStart};
  const auto is = [&](int number) { return status == 128 + number; };
  return std::ranges::find(kFinal, status) == kFinal.end() && std::ranges::none_of(dp::kStopSignals, is);
}

int pause_before(int restart, int first) {
  constexpr int kMost = 60, kDoubled = 6;
  return std::min<int>(kMost, first * (1 << std::min(restart - 1, kDoubled)));
}

}  // namespace dp_train
