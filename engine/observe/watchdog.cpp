#include "engine/observe/watchdog.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <limits>
#include <system_error>

#include "engine/observe/crash_record.h"
#include "kernels/device/host/cores.h"

namespace dp::engine {
namespace {

constexpr int kLooks = 16;
constexpr double kPollRounding = 1e-6;
// Fractions of the timeout: for other processes to end the call, for the stacks of the record, for the call to end
// after the flag is raised, and for it to end after other processes have heard of the fault. With other processes all
// of them together stay below one timeout.
constexpr double kOthers = 1.0 / 4, kStacks = 1.0 / 4, kEnd = 1.0 / 2, kEndOfOthers = 1.0 / 5;
constexpr double kLongestEnd = 10;  // seconds; upper limit of the times from all but kOthers

}  // namespace

Watchdog::Watchdog(WatchdogOptions options) : options_(std::move(options)) {
  try {
    thread_ = std::thread([this] { watch(); });
  } catch (const std::system_error& error) {
    throw Error(
        ErrorCode::device,
        fmt::format("the watchdog's thread could not be started ({}); raise ulimit -u and -v, or use --timeout 0",
                    error.code().message()));
  }
}

Watchdog::~Watchdog() {
  {
    const std::scoped_lock lock(mutex_);
    over_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::optional<Error> Watchdog::verdict() const {
  const std::scoped_lock lock(mutex_);
  return verdict_;
}

bool Watchdog::sleep(double seconds) {
  std::unique_lock lock(mutex_);
  return !time_.wait(lock, wake_, seconds, [this] { return over_; });
}

void Watchdog::watch() {
  kernels::unpin_current_thread();
  ::pthread_setname_np(::pthread_self(), "watchdog");
  const double limit = options_.seconds > 0 ? options_.seconds : std::numeric_limits<double>::infinity();
  const double after_stop = std::min(limit, options_.after_stop),
               interval = (options_.stop ? after_stop : limit) / kLooks;
  std::uint64_t seen = 0;
  // Polls, not seconds: time in which the process was suspended does not count.
  int still = 0, still_after_stop = 0;
  while (sleep(interval)) {
    const std::uint64_t now = progress_count();
    if (!in_call() || now != seen) {
      seen = now;
      still = still_after_stop = 0;
      continue;
    }
    if (options_.counts && !options_.counts()) continue;
    still += 1, still_after_stop += stop() != 0;
    if (still_after_stop >= kLooks || still >= limit / interval - kPollRounding) {
      judge(still_after_stop >= kLooks ? after_stop : limit);
      still = still_after_stop = 0;
    }
  }
}

std::uint64_t Watchdog::progress_count() const {
  std::uint64_t sum = calls_.load();
  for (int i = 0; i < options_.replicas; ++i) sum += options_.progress_count(i);
  return sum;
}

bool Watchdog::call_ends_within(double seconds) {
  constexpr double kNap = 0.01;
  const std::uint64_t call = calls_.load();
  for (double slept = 0; slept < seconds; slept += kNap)
    if (calls_.load() != call || !sleep(kNap)) return true;
  return false;
}

void Watchdog::judge(double seconds) {
  bool own_fault = !options_.others;
  for (int i = 0; i < options_.replicas; ++i) own_fault = own_fault || !options_.waits(i);
  // If all replicas of this process wait for other processes, those get time to report the cause first.
  if (!own_fault && call_ends_within(seconds * kOthers)) return;
  const std::uint64_t call = calls_.load(), seen = progress_count();
  const Error error(ErrorCode::timeout, describe(seconds, !own_fault && options_.silent ? options_.silent() : ""));
  if (calls_.load() != call || progress_count() != seen) return;  // progress resumed during the query of other ranks
  record_stall(error.what(), std::min(seconds * kStacks, kLongestEnd));
  if (!options_.abort->load(std::memory_order_acquire)) {
    const std::scoped_lock lock(mutex_);
    verdict_ = error;
  }
  options_.abort->store(true, std::memory_order_release);
  const bool tested = static_cast<bool>(test_modes().after_abort);
  if (tested) test_modes().after_abort();
  const double patience = tested ? 60 : std::min(seconds * kEnd, kLongestEnd);
  if (call_ends_within(options_.others ? patience / 10 : patience)) return;
  std::fflush(stdout);
  std::fprintf(stderr, "dp: error: %s; a stalled thread cannot be stopped: aborting the process\n", error.what());
  std::fflush(stderr);
  if (options_.last_words) options_.last_words(error);
  if (options_.others && call_ends_within(tested ? patience : std::min(seconds * kEndOfOthers, kLongestEnd))) return;
  ::_exit(stop() > 0 && stop() < NSIG ? 128 + stop() : static_cast<int>(ErrorCode::timeout));
}

std::string Watchdog::describe(double seconds, const std::string& silent) const {
  std::string culprits, all;
  for (int i = 0; i < options_.replicas; ++i) {
    const bool waits = options_.waits(i);
    if (!waits) culprits += (culprits.empty() ? "" : ", ") + options_.name(i);
    all += (i == 0 ? "" : "; ") + options_.name(i) + (waits ? " is waiting in " : " is stalled in ") + options_.last(i);
  }
  if (!culprits.empty())
    culprits += " made no progress";
  else
    culprits =
        (silent.empty() ? "" : silent + " did not answer (is its process stopped?): ") + "no replica made progress";
  return fmt::format("{} for {:g} s{}: {}", culprits, seconds, stop() != 0 ? " after the request to stop" : "", all);
}

}  // namespace dp::engine
