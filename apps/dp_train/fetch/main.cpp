// dp_fetch: downloads for `dp_train fetch`, which starts it: dataset, data path, mirror or "", "quiet" or "",
// "progress" or "". Without arguments it sends DP_JSON to the address in DP_WEBHOOK, for `dp_train --webhook`.
#include <dp/error.h>
#include <dp/standard_descriptors.h>
#include <dp/stop_signals.h>
#include <dp/trainer.h>
#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "fetch.h"

namespace {

std::atomic<int> stop{0};
static_assert(std::atomic<int>::is_always_lock_free);

// A second signal, or a second without an end, ends the process: a name lookup cannot be interrupted.
void on_signal(int number) {
  if (stop.load() != 0) ::_exit(128 + stop.load());
  stop = number;
  // On a terminal the progress line is open, and the terminal shows ^C in it.
  const std::string_view text = ::isatty(STDERR_FILENO) == 1 ? "\ndp_train: stopping\n" : "dp_train: stopping\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  ::alarm(1);
}

// dp_train blocks signals, and ignores SIGPIPE and SIGXFSZ.
void handle_signals() {
  sigset_t handled;
  ::sigemptyset(&handled);
  ::sigaddset(&handled, SIGALRM);
  std::signal(SIGALRM, on_signal);
  for (const int number : dp::kStopSignals) {
    if (dp::stays_ignored(number)) continue;
    ::sigaddset(&handled, number);
    std::signal(number, on_signal);
  }
  ::sigprocmask(SIG_UNBLOCK, &handled, nullptr);
}

// A failure is a warning, because the run has ended.
int send(const char* address) {
  try {
    const char* const json = std::getenv("DP_JSON");
    dp_train::post(address, json == nullptr ? "{}" : json);
  } catch (const dp::Error& error) {
    std::fprintf(stderr, "dp_train: warning: --webhook: %s\n", dp::printable(error.what()).c_str());
  }
  return 0;
}

int fail(dp::ErrorCode code, const std::string& what) {
  std::fprintf(stderr, "dp_train: error: %s\n", dp::printable(what).c_str());
  return static_cast<int>(code);
}

}  // namespace

int main(int argc, char** argv) try {
  if (const char* const address = std::getenv("DP_WEBHOOK"); argc == 1 && address != nullptr) return send(address);
  if (argc != 6) return fail(dp::ErrorCode::usage, "dp_fetch is a part of dp_train; call dp_train fetch");
  handle_signals();
  const dp_train::FetchOptions options{argv[2], *argv[3] ? std::optional<std::string>(argv[3]) : std::nullopt,
                                       *argv[4] != '\0', *argv[5] != '\0'};
  dp_train::fetch(dp_train::source(argv[1]), options, stop);
  dp::flush_stdout();
  return stop.load() == 0 ? 0 : 128 + stop.load();
} catch (const dp::Error& error) {
  return stop.load() == 0 ? fail(error.code(), error.what()) : 128 + stop.load();
} catch (const std::exception& error) {
  fail(dp::ErrorCode::io, error.what());
  return 1;
}
