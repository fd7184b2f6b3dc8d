#include "supervisor.h"

#include <dp/error.h>
#include <dp/report.h>
#include <dp/stop_signals.h>
#include <fcntl.h>
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
#include <exception>
#include <filesystem>
#include <utility>
#include <vector>

#include "devices.h"
#include "fetch/sources.h"
#include "signals.h"
#include "trainer_options.h"

namespace dp_train {
namespace {

using Clock = std::chrono::steady_clock;

// The environment of the child, and of its ranks.
constexpr const char* kRestarts = "DP_RESTARTS";    // restarts so far
constexpr const char* kFolder = "DP_RUN_FOLDER";    // of the run
constexpr const char* kResumes = "DP_RUN_RESUMES";  // set: the child continues the run in the folder
constexpr const char* kElastic = "DP_RUN_ELASTIC";  // set: the child trains on the visible GPUs that its layout allows
constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
constexpr int kCannotStart = 127;
constexpr int kTrialSeconds = 120;  // a GPU that hangs

std::string describe(int status) {
  if (status <= 128) return "exit status " + std::to_string(status);
  return "signal " + std::to_string(status - 128) + " (" + ::strsignal(status - 128) + ")";
}

int exit_status(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

// In a terminal, begins a new line, because a crash leaves the progress line open.
void say(const std::string& text) {
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const std::string line = (terminal ? "\n" : "") + program().name + ": " + dp::printable(text) + "\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

// Tests set it in the environment.
int seconds(const char* variable, int usual) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? usual : std::max(0, std::atoi(text));
}

// "--on-end" of the words "--on_end" and "--on-end=command".
std::string option_of(const char* word) {
  std::string name(word, std::strcspn(word, "="));
  std::ranges::replace(name, '_', '-');
  return name;
}

bool reports_end(const std::string& option) { return option == "--on-end" || option == "--webhook"; }

std::vector<char*> arguments_of_child(char* const* argv) {
  std::vector<char*> words;
  for (; *argv != nullptr; ++argv)
    if (!reports_end(option_of(*argv)))
      words.push_back(*argv);
    else if (std::strchr(*argv, '=') == nullptr)
      ++argv;
  words.push_back(nullptr);
  return words;
}

class Supervisor {
 public:
  Supervisor(const Command& command, std::string folder, char* const* argv)
      : command_(command),
        folder_(std::move(folder)),
        argv_(arguments_of_child(argv)),
        program_(std::filesystem::read_symlink("/proc/self/exe")),
        fetch_(command.webhook ? fetch_program("--webhook") : ""),
        earlier_starts_(dp::last_start(folder_).starts),
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
      start_run(restarts);
      const int status = wait_for_child();
      if (!may_restart(status)) return status;
      const std::int64_t step = dp::saved_step(folder_);
      if (step >= 0 && step != before) failures = 0, saved_ = true;
      record(status);
      const std::string what = "the run failed: " + describe(status);
      if (stop_ != 0 || failures == command_.max_restarts) {
        const std::string given_up = ": no new checkpoint since the last " + std::to_string(failures) + " restarts";
        say(what + (command_.max_restarts == 0 ? "" : "; it is not restarted" + (stop_ != 0 ? "" : given_up)));
        return status;
      }
      const int pause = pause_before(++failures, seconds("DP_RESTART_PAUSE", 1));
      say(what + "; restart " + std::to_string(failures) + " of " + std::to_string(command_.max_restarts) + " in " +
          std::to_string(pause) + " s, from step " + std::to_string(std::max<std::int64_t>(step, 0)));
      wait_for_others();
      const auto until = Clock::now() + std::chrono::seconds(pause);
      while (stop_ == 0 && Clock::now() < until) take_signal(until);
      if (command_.elastic) choose_gpus();
      if (stop_ != 0) return 128 + stop_;
    }
  }

  // For a run that has ended with this status.
  void report_end(int status) {
    ended_ = true;
    Variables variables = dp::variables_of_end(folder_, status);
    const auto report = [&](const std::string& option, std::vector<std::string> words) {
      const std::string fault = run_limited(Starts::report, std::move(words), variables);
      if (!fault.empty()) say("warning: " + option + ": " + fault);
    };
    if (command_.on_end) report("--on-end", {"/bin/sh", "-c", *command_.on_end});
    if (!command_.webhook) return;
    variables.emplace_back("DP_WEBHOOK", *command_.webhook);  // not an argument: `ps` shows those
    report("--webhook", {fetch_});
  }

 private:
  using Variables = std::vector<std::pair<std::string, std::string>>;
  enum class Starts { run, report, trial };

  // Starts a program with further environment variables; -1 if that fails.
  pid_t start(Starts what, const std::vector<char*>& words, const Variables& variables) const {
    const pid_t parent = ::getpid(), child = ::fork();
    if (child != 0) return child;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kCannotStart);
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    if (what == Starts::run) {
      ::pthread_sigmask(SIG_SETMASK, &inherited_, nullptr);  // the stop signals wait until the child handles them
    } else {
      ::setpgid(0, 0);
      ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
      if (what == Starts::trial) ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
      for (const int number : {SIGPIPE, SIGXFSZ}) std::signal(number, SIG_DFL);
      ::pthread_sigmask(SIG_UNBLOCK, &awaited_, nullptr);
    }
    const char* const program = what == Starts::run ? program_.c_str() : words.front();
    ::execv(program, words.data());
    say(std::string("cannot start ") + program + ": " + std::strerror(errno));
    ::_exit(kCannotStart);
  }

  void start_run(int restarts) {
    Variables variables{{kRestarts, std::to_string(restarts)}, {kFolder, folder_}};
    const std::string& resume = command_.trainer.resume;
    if (restarts > 0 && (saved_ || resume.empty() || resume == "auto")) variables.emplace_back(kResumes, "1");
    if (!visible_.empty()) variables.emplace_back(kElastic, "1"), variables.emplace_back(kVisible, visible_);
    child_ = start(Starts::run, argv_, variables);
    if (child_ < 0) throw dp::Error(dp::ErrorCode::device, std::string("cannot fork: ") + std::strerror(errno));
  }

  // Chooses the GPUs of the next child: all GPUs of the run that still work. If none works, the child tries all.
  void choose_gpus() {
    if (dp::LastStart last = dp::last_start(folder_); gpus_.empty() && last.starts > earlier_starts_)
      gpus_ = std::move(last.gpus);
    visible_.clear();
    for (const std::string& gpu : gpus_) {
      const std::string fault = run_limited(Starts::trial, trial(), {{kVisible, gpu}, {"DP_FAIL", ""}});
      if (stop_ != 0) return;
      if (fault.empty())
        visible_ += (visible_.empty() ? "" : ",") + gpu;
      else
        say("warning: " + gpu + " is left out: it cannot train: " + fault);
    }
  }

  // One step of a small network on the only visible GPU.
  std::vector<std::string> trial() const {
    return {program_,       "--gpus",    "0", "--dry-run", "--model", "mlp", "--dataset", "synthetic",     "--input",
            "1,4,4",        "--classes", "2", "--images",  "16",      "-b",  "8",         "--no-autotune", "--quiet",
            "--no-progress"};
  }

  // Whether a signal ends what is done now.
  bool is_ended() const { return ended_ ? cancelled_ : stop_ != 0; }

  // Runs a program in its own process group. Kills the group when a signal arrives or the time is over. Returns the
  // fault, or an empty text.
  std::string run_limited(Starts what, std::vector<std::string> words, const Variables& variables) {
    if (is_ended()) return "";
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    const int most = what == Starts::report ? seconds("DP_ON_END_SECONDS", 30) : kTrialSeconds;
    const auto until = Clock::now() + std::chrono::seconds(most);
    const pid_t child = start(what, pointers, variables);
    if (child < 0) return std::string("cannot fork: ") + std::strerror(errno);
    ::setpgid(child, child);
    int status = 0;
    bool ended = false;
    while (!(ended = ::waitpid(child, &status, WNOHANG) == child) && !is_ended() && Clock::now() < until)
      take_signal(until);
    if (!ended) ::kill(-child, SIGKILL), ::waitpid(child, &status, 0);
    if (ended) return status == 0 ? "" : describe(exit_status(status));
    return is_ended() ? "ended by a signal" : "ended after " + std::to_string(most) + " s";
  }

  int wait_for_child() {
    int status = 0;
    while (::waitpid(child_, &status, WNOHANG) != child_) take_signal();
    child_ = 0;
    return exit_status(status);
  }

  // The launcher has ended, but its ranks may still run, with the run's lock and its devices. Waits until they end.
  void wait_for_others() {
    while (stop_ == 0) {
      const pid_t ended = ::waitpid(-1, nullptr, WNOHANG);
      if (ended < 0) return;
      if (ended == 0) take_signal();
    }
  }

  // Waits for a signal. Forwards the first request to stop; the child ignores it if it already has it from the
  // terminal. A second request ends this process, and the kernel then ends the child.
  void take_signal(Clock::time_point until = Clock::time_point::max()) {
    const auto left = std::max(Clock::duration::zero(), until - Clock::now());
    const auto whole = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec most{whole.count(), std::chrono::nanoseconds(left - whole).count()};
    const int number = ::sigtimedwait(&awaited_, nullptr, &most);
    if (number <= 0 || number == SIGCHLD) return;
    if (stop_ != 0 && same_request(stop_, number) && Clock::now() - stopped_at_ <= std::chrono::seconds(1)) return;
    if (ended_) {
      cancelled_ = true;
    } else if (stop_ == 0) {
      stop_ = number;
      stopped_at_ = Clock::now();
      if (child_ > 0) ::kill(child_, number);
    } else {
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
  const std::vector<char*> argv_;  // of the child
  const std::filesystem::path program_;
  const std::string fetch_;           // the program that sends --webhook
  const std::size_t earlier_starts_;  // of the run in this folder
  sigset_t awaited_, inherited_{};
  pid_t child_ = 0;                         // 0: there is none
  std::vector<std::string> gpus_;           // UUIDs of the GPUs with which the run began, once they are known
  std::string visible_;                     // those of the next child; empty: the child chooses
  bool saved_ = false;                      // whether a child has saved a checkpoint
  int stop_ = 0;                            // the first signal that asks to stop
  bool ended_ = false, cancelled_ = false;  // the run; the reports of its end
  Clock::time_point stopped_at_{};
};

}  // namespace

bool is_supervised() { return std::getenv(kRestarts) != nullptr; }

bool may_supervise(int argc, const char* const* argv) {
  const bool asked = std::any_of(argv, argv + argc, [](const char* word) {
    const std::string option = option_of(word);
    return option == "--max-restarts" || reports_end(option);
  });
  if (!asked || is_supervised()) return false;
  const sigset_t stops = stop_signals();
  ::pthread_sigmask(SIG_BLOCK, &stops, nullptr);
  return true;
}

bool needs_supervisor(const Command& command) {
  if (command.estimate_memory) return false;
  const std::string launcher = command.nnodes > 1 ? "another host" : launcher_here();
  const bool alone = command.engine != "ddp" || launcher.empty();
  if (command.max_restarts > 0 && !alone)
    usage("--max-restarts restarts the ranks that this process starts, but " + launcher +
          " starts ranks of this run, too; restart all of them with --resume auto");
  const bool first = alone || (command.node_rank == 0 && rank_here() == 0);
  return command.max_restarts > 0 || (first && (command.on_end || command.webhook));
}

int supervise(const Command& command, char* const* argv) {
  if (command.webhook) check_address("--webhook", *command.webhook);
  const OutputFolder folder = output_folder(command);
  Supervisor supervisor(command, folder.path(), argv);
  const int status = supervisor.run();
  try {
    supervisor.report_end(status);
  } catch (const std::exception& error) {
    say(std::string("warning: the end of the run is not reported: ") + error.what());
  }
  return status;
}

void obey_supervisor(std::map<std::string, dp::OptionValue>& given) {
  const char* const folder = std::getenv(kFolder);
  if (!is_supervised() || folder == nullptr) return;
  given.erase("experiment");
  given["output-dir"] = std::string(folder);
  if (std::getenv(kResumes) != nullptr) given["resume"] = std::string("auto");
  if (!may_leave_out_gpus()) return;
  given.erase("num-gpus");
  given["gpus"] = std::string("all");
}

bool may_leave_out_gpus() { return std::getenv(kElastic) != nullptr; }

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
