#include "signals.h"

#include <dp/error.h>
#include <unistd.h>
#include <csignal>
#include <system_error>
#include <thread>

namespace dp_train {
namespace {

std::atomic<int> received{0};
std::atomic<bool> tells{true};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int number) {
  int none = 0;
  if (!received.compare_exchange_strong(none, number)) ::_exit(128 + number);
  if (!tells.load()) return;
  constexpr char text[] = "dp_train: stopping after this step; once more leaves at once\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, sizeof text - 1);
}

}  // namespace

void tell_of_signals(bool tell) { tells.store(tell); }

const std::atomic<int>& watch_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return received;
}

void keep_signals_from_threads() {
  try {
    std::thread([] {
      while (true) ::pause();
    }).detach();
  } catch (const std::system_error& error) {
    throw dp::Error(dp::ErrorCode::device, "the thread for signals could not be started (" + error.code().message() +
                                               "); raise ulimit -u and -v");
  }
  sigset_t ours;
  ::sigemptyset(&ours);
  ::sigaddset(&ours, SIGINT);
  ::sigaddset(&ours, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &ours, nullptr);
}

}  // namespace dp_train
