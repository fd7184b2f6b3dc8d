#include "signals.h"

#include <dp/crash_record.h>
#include <dp/error.h>
#include <dp/stop_signals.h>
#include <poll.h>
#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

#include "command.h"
#include "fetch/sources.h"

namespace dp_train {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kUntilLeaving = std::chrono::seconds(1);  // time for a run to stop by itself
constexpr int kTick = 50;                                // milliseconds
constexpr int kSameSignal = 20;                          // ticks: one second

Signals signals;
std::string stopping, stopping_later;  // what the first signal prints

void print(std::string_view text, int to = STDERR_FILENO) {
  [[maybe_unused]] const auto written = ::write(to, text.data(), text.size());
}

bool from_launcher(const signalfd_siginfo& info) {
  const bool by_process = info.ssi_code <= 0;
  return signals.forwarded.load() && by_process && static_cast<pid_t>(info.ssi_pid) == ::getppid();
}

void announce() {
  if (!signals.announces.load()) return;
  // On a terminal the progress line is open, and the terminal shows ^C in it.
  const int terminal = ::isatty(STDERR_FILENO) == 1 ? STDERR_FILENO : STDOUT_FILENO;  // a rank's stderr is a pipe
  if (::isatty(terminal) == 1) print("\n", terminal);
  print(signals.unsaved.load() ? stopping_later : stopping);
}

// Flushes stdout only if that cannot block (a pipe with room takes the whole buffer). Otherwise drops the output.
[[noreturn]] void leave(int code) {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  if (::poll(&out, 1, 0) == 1 && (out.revents & POLLOUT) != 0 && ::ftrylockfile(stdout) == 0) ::fflush_unlocked(stdout);
  ::_exit(code);
}

// `arrivals`: a signalfd. read() takes a signal from the pending ones. The first signal is stored before, so
// received_signal() always sees it.
[[noreturn]] void watch(int arrivals) {
  ::pthread_setname_np(::pthread_self(), "signals");
  pollfd arrival{arrivals, POLLIN, 0};
  while (::poll(&arrival, 1, -1) != 1) continue;
  const int first = received_signal();
  signals.received.store(first);
  announce();
  int ticks = 0;
  for (auto leave_at = Clock::now() + kUntilLeaving; signals.unsaved.load() || Clock::now() < leave_at;) {
    signalfd_siginfo info;
    const int ready = ::poll(&arrival, 1, kTick);
    if (ready == 0) {
      ++ticks;
    } else if (ready == 1 && ::read(arrivals, &info, sizeof info) == sizeof info) {
      const int number = static_cast<int>(info.ssi_signo);
      const bool repeated = same_request(first, number) && ticks < kSameSignal;  // or the first one itself
      if (!repeated && !from_launcher(info)) ::_exit(128 + number);
    }
    if (signals.unsaved.load()) leave_at = Clock::now() + kUntilLeaving;
  }
  leave(128 + first);
}

}  // namespace

sigset_t stop_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : dp::kStopSignals)
    if (!dp::stays_ignored(number)) ::sigaddset(&set, number);
  return set;
}

bool same_request(int first, int second) {
  const auto ends_session = [](int number) { return number == SIGTERM || number == SIGHUP; };
  return first == second || (ends_session(first) && ends_session(second));
}

// Asks for pending signals first: until watch() has stored a signal, it is pending.
int received_signal() {
  sigset_t waiting;
  ::sigpending(&waiting);
  if (const int number = signals.received.load(); number != 0) return number;
  const sigset_t ours = stop_signals();
  for (const int number : dp::kStopSignals)
    if (::sigismember(&ours, number) == 1 && ::sigismember(&waiting, number) == 1) return number;
  return 0;
}

void handle_crashes(const std::string& file) { dp::record_crashes({file, program_beside("dp_stacks")}); }

Signals& handle_signals() {
  stopping = program().name + ": stopping\n";
  stopping_later = program().name + ": stopping after a checkpoint is written; a second signal exits at once\n";
  std::signal(SIGPIPE, SIG_IGN);
  const sigset_t ours = stop_signals();
  ::pthread_sigmask(SIG_BLOCK, &ours, nullptr);
  for (const int number : dp::kStopSignals)
    if (::sigismember(&ours, number) == 1) std::signal(number, SIG_DFL);  // an ignored signal would not arrive
  const int arrivals = ::signalfd(-1, &ours, SFD_CLOEXEC);
  if (arrivals < 0)
    throw dp::Error(dp::ErrorCode::device, std::string("cannot wait for signals: ") + std::strerror(errno));
  try {
    std::thread(watch, arrivals).detach();
  } catch (const std::system_error& error) {
    throw dp::Error(dp::ErrorCode::device,
                    "the signal thread could not be started (" + error.code().message() + "); raise ulimit -u and -v");
  }
  return signals;
}

}  // namespace dp_train
