#include "signals.h"

#include <dp/error.h>
#include <dp/stop_signals.h>
#include <poll.h>
#include <unistd.h>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

#include "command.h"

namespace dp_train {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kUntilLeaving = std::chrono::seconds(1);  // time for a run to stop by itself
constexpr timespec kTick{0, 50'000'000};
constexpr int kSameSignal = 20;  // ticks: one second

Signals signals;
std::string stopping, stopping_later;  // what the first signal prints
std::atomic<int> ticks{0};             // counted by watch() since the first signal
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void print(std::string_view text, int to = STDERR_FILENO) {
  [[maybe_unused]] const auto written = ::write(to, text.data(), text.size());
}

bool from_launcher(const siginfo_t& info) {
  return signals.forwarded.load() && info.si_code <= 0 && info.si_pid == ::getppid();  // <= 0: a process sent it
}

// A closing session may send SIGTERM and SIGHUP together.
bool same_request(int first, int second) {
  const auto ends_session = [](int number) { return number == SIGTERM || number == SIGHUP; };
  return first == second || (ends_session(first) && ends_session(second));
}

// Runs only on the thread of watch(), never nested.
void on_signal(int number, siginfo_t* info, void*) {
  const int first = signals.received.load();
  if (first != 0) {
    if (from_launcher(*info) || (same_request(first, number) && ticks.load() < kSameSignal)) return;
    ::_exit(128 + number);
  }
  signals.received.store(number);
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

sigset_t handled() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : dp::kStopSignals)
    if (!dp::stays_ignored(number)) ::sigaddset(&set, number);
  return set;
}

// The signals are blocked except during sigsuspend() and ppoll().
[[noreturn]] void watch() {
  sigset_t open;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &open);
  for (const int number : dp::kStopSignals) ::sigdelset(&open, number);
  while (signals.received.load() == 0) ::sigsuspend(&open);
  for (auto leave_at = Clock::now() + kUntilLeaving; Clock::now() < leave_at;) {
    if (::ppoll(nullptr, 0, &kTick, &open) == 0) ++ticks;
    if (signals.unsaved.load()) leave_at = Clock::now() + kUntilLeaving;
  }
  leave(128 + signals.received.load());
}

}  // namespace

int received_signal() {
  if (const int number = signals.received.load(); number != 0) return number;
  sigset_t waiting;
  ::sigpending(&waiting);
  const sigset_t ours = handled();
  for (const int number : dp::kStopSignals)
    if (::sigismember(&ours, number) == 1 && ::sigismember(&waiting, number) == 1) return number;
  return 0;
}

Signals& handle_signals() {
  stopping = program().name + ": stopping\n";
  stopping_later = program().name + ": stopping after a checkpoint is written; a second signal exits at once\n";
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  action.sa_mask = handled();
  for (const int number : dp::kStopSignals)
    if (::sigismember(&action.sa_mask, number) == 1) ::sigaction(number, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  ::pthread_sigmask(SIG_BLOCK, &action.sa_mask, nullptr);
  try {
    std::thread(watch).detach();
  } catch (const std::system_error& error) {
    throw dp::Error(dp::ErrorCode::device,
                    "the signal thread could not be started (" + error.code().message() + "); raise ulimit -u and -v");
  }
  return signals;
}

}  // namespace dp_train
