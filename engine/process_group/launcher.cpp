// Starts the ranks, prefixes their output and forwards signals to them.
#include "engine/process_group/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "dp/error.h"
#include "dp/launch.h"
#include "dp/stop_signals.h"
#include "engine/base/test_modes.h"
#include "engine/process_group/connection.h"

namespace dp::process_group {

void write_line(int to, const std::string& text) {
  const std::string line = text + "\n";
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t count = ::write(to, line.data() + sent, line.size() - sent);
    if (count < 0 && errno != EINTR) return;  // the reader is gone
    if (count > 0) sent += static_cast<std::size_t>(count);
  }
}

bool LinePrefix::pass_on(int from) {
  char block[4096];
  ssize_t count = 0;
  while ((count = ::read(from, block, sizeof block)) > 0) {
    line_.append(block, static_cast<std::size_t>(count));
    for (std::size_t end = 0; (end = line_.find('\n')) != std::string::npos; line_.erase(0, end + 1))
      write_line(to_, prefix_ + line_.substr(0, end));
  }
  return count < 0 && (errno == EAGAIN || errno == EINTR);
}

void LinePrefix::finish() {
  if (!line_.empty()) write_line(to_, prefix_ + line_);
  line_.clear();
}

namespace {

std::atomic<pid_t> group{0};
static_assert(std::atomic<pid_t>::is_always_lock_free);

// Stops this process by the default action of SIGTSTP. The kernel ignores it in an orphaned process group, because no
// shell could continue the process.
void stop_as_usual() {
  struct sigaction usual {
  }, own{};
  usual.sa_handler = SIG_DFL;
  sigset_t signal, before;
  ::sigemptyset(&signal);
  ::sigaddset(&signal, SIGTSTP);
  ::sigaction(SIGTSTP, &usual, &own);
  ::raise(SIGTSTP);
  ::pthread_sigmask(SIG_UNBLOCK, &signal, &before);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::sigaction(SIGTSTP, &own, nullptr);
}

void suspend(int) {
  const int error = errno;
  ::kill(-group.load(), SIGSTOP);
  stop_as_usual();
  ::kill(-group.load(), SIGCONT);
  errno = error;
}

}  // namespace

SuspendTogether::SuspendTogether(pid_t others) {
  ::sigaction(SIGTSTP, nullptr, &before_);
  if (before_.sa_handler != SIG_DFL) return;
  group = others;
  struct sigaction together {};
  together.sa_handler = suspend;
  together.sa_flags = SA_RESTART;
  ::sigaction(SIGTSTP, &together, nullptr);
}

SuspendTogether::~SuspendTogether() { ::sigaction(SIGTSTP, &before_, nullptr); }

}  // namespace dp::process_group

namespace dp {
namespace {

constexpr int kTick = 50;  // milliseconds between checks of the processes
constexpr auto kEndWithin = std::chrono::seconds(3);

struct Pipe {
  FileHandle read, write;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw Error(ErrorCode::device, std::string("cannot create a pipe: ") + std::strerror(errno));
    read = FileHandle(ends[0]);
    write = FileHandle(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
};

// The caller may block the signals, and exec() preserves the signal mask. Unblocks them, so that they can end a rank
// that has no handler yet.
void unblock_signals() {
  sigset_t unblocked;
  ::sigemptyset(&unblocked);
  for (const int number : kStopSignals) {
    if (std::signal(number, SIG_DFL) == SIG_IGN) std::signal(number, SIG_IGN);
    ::sigaddset(&unblocked, number);
  }
  ::pthread_sigmask(SIG_UNBLOCK, &unblocked, nullptr);
}

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options)
      : options_(options), program_(std::filesystem::read_symlink("/proc/self/exe")) {
    if (options_.first_rank == 0) {
      listener_ = process_group::listen_on(options_.address, options_.port);
      options_.port = process_group::port_of(listener_);
    }
    if (options_.token.empty()) options_.token = process_group::drawn_token();
  }
  ~Launcher() { kill_all(SIGKILL); }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  void start(char* const* arguments) {
    if (options_.unsaved) options_.unsaved->store(true);
    for (int rank = options_.first_rank; rank < options_.first_rank + options_.ranks; ++rank) start(rank, arguments);
    listener_.close();
  }

  int wait() {
    const process_group::SuspendTogether together(group_);
    while (true) {
      pass_on_output(kTick);
      reap();
      if (running() == 0) break;
      if (stop() != 0 && !std::exchange(forwarded_, true)) kill_all(stop());
      if (failed_at_ && time_.now() - *failed_at_ > kEndWithin) kill_all(SIGKILL);
    }
    pass_on_output(0);
    for (Output& output : outputs_) output.lines.finish();
    return code_;
  }

 private:
  struct Process {
    int rank;
    pid_t id;
    bool running = true;
  };
  struct Output {
    FileHandle from;
    process_group::LinePrefix lines;
  };

  void start(int rank, char* const* arguments) {
    Pipe out, error;
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child < 0)
      throw Error(ErrorCode::device, std::string("cannot fork a process for a rank: ") + std::strerror(errno));
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      become(rank, out, error, arguments);
    }
    ::setpgid(child, group_);
    if (group_ == 0) group_ = child;
    processes_.push_back({rank, child});
    const std::string prefix = "[rank " + std::to_string(rank) + "] ";
    outputs_.push_back({std::move(error.read), process_group::LinePrefix(prefix, STDERR_FILENO)});
    if (rank != 0) outputs_.push_back({std::move(out.read), process_group::LinePrefix(prefix, STDOUT_FILENO)});
  }

  // Runs in the child. The ranks have their own process group, so that Ctrl-C in a terminal does not reach them twice.
  [[noreturn]] void become(int rank, const Pipe& out, const Pipe& error, char* const* arguments) {
    ::setpgid(0, group_);
    unblock_signals();
    ::dup2(error.write.get(), STDERR_FILENO);
    if (rank != 0) ::dup2(out.write.get(), STDOUT_FILENO);
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", std::to_string(options_.world_size).c_str(), 1);
    ::setenv("LOCAL_RANK", std::to_string(rank - options_.first_rank).c_str(), 1);
    ::setenv("MASTER_ADDR", options_.address.c_str(), 1);
    ::setenv("MASTER_PORT", std::to_string(options_.port).c_str(), 1);
    ::setenv("DP_TOKEN", options_.token.c_str(), 1);
    for (const char* other : {"DP_LISTENER", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID"}) ::unsetenv(other);
    if (rank == 0) {
      ::fcntl(listener_.get(), F_SETFD, 0);
      ::setenv("DP_LISTENER", std::to_string(listener_.get()).c_str(), 1);
    }
    ::execv(program_.c_str(), arguments);
    process_group::write_line(STDERR_FILENO,
                              std::string("dp: cannot start ") + program_.c_str() + ": " + std::strerror(errno));
    ::_exit(127);
  }

  void pass_on_output(int milliseconds) {
    std::vector<pollfd> watched;
    for (const Output& output : outputs_) watched.push_back({output.from ? output.from.get() : -1, POLLIN, 0});
    ::poll(watched.data(), watched.size(), milliseconds);
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      if (watched[i].revents != 0 && !outputs_[i].lines.pass_on(outputs_[i].from.get())) outputs_[i].from.close();
  }

  void reap() {
    for (Process& process : processes_) {
      int status = 0;
      if (!process.running || ::waitpid(process.id, &status, WNOHANG) != process.id) continue;
      process.running = false;
      const bool killed = WIFSIGNALED(status);
      const int ended_with = killed ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      // A rank may stop at another rank's request before its own signal arrives. Its code is then that of SIGINT.
      const bool agreed_to_stop = stop() != 0 && !killed && ended_with == 128 + SIGINT;
      const int code = agreed_to_stop ? 128 + stop() : ended_with;
      const bool stopped_by_signal = stop() != 0 && code == 128 + stop();
      if (killed && !by_us_ && !stopped_by_signal)
        process_group::write_line(STDERR_FILENO, "rank " + std::to_string(process.rank) + " was terminated by signal " +
                                                     std::to_string(WTERMSIG(status)) + " (" +
                                                     ::strsignal(WTERMSIG(status)) + ")");
      if (code == 0 || by_us_) continue;
      if (stopped_by_signal) {
        if (!failed_at_) code_ = code;
        continue;
      }
      // A rank that was killed makes other ranks fail, so its code takes precedence.
      if (!failed_at_ || (killed && code_ < 128)) code_ = code;
      if (!failed_at_) failed_at_ = time_.now();
    }
  }

  int stop() const { return options_.stop ? options_.stop->load() : 0; }

  int running() const {
    int count = 0;
    for (const Process& process : processes_) count += process.running;
    return count;
  }

  // One call signals all ranks. If a rank ends by the signal, every other rank has received it, too.
  void kill_all(int signal) {
    by_us_ = by_us_ || signal == SIGKILL;
    if (running() > 0) ::kill(-group_, signal);
  }

  engine::TimeSource& time_ = *engine::test_modes().time;
  LaunchOptions options_;
  const std::filesystem::path program_;
  FileHandle listener_;
  pid_t group_ = 0;
  std::vector<Process> processes_;
  std::vector<Output> outputs_;
  std::optional<process_group::Clock::time_point> failed_at_;
  int code_ = 0;
  bool forwarded_ = false;  // the stop signal was forwarded
  bool by_us_ = false;      // we sent SIGKILL
};

}  // namespace

int launch_ranks(const LaunchOptions& options, char* const* arguments) {
  Launcher launcher(options);
  launcher.start(arguments);
  return launcher.wait();
}

}  // namespace dp
