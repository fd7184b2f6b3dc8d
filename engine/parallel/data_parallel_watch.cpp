// The watchdog of a DataParallel, and the cause of a failure.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <thread>

#include "dp/error.h"
#include "engine/parallel/data_parallel_state.h"
#include "engine/process_group/process_group_state.h"

namespace dp {
namespace {

constexpr auto kUntilSent = std::chrono::milliseconds(200);

}  // namespace

void DataParallel::State::watch() {
  engine::WatchdogOptions o;
  o.seconds = *options.timeout_seconds;
  o.replicas = static_cast<int>(replicas.size());
  o.abort = pool.abort_flag();
  o.others = options.process_group && size() > 1;
  const auto at = [this](int i) -> const engine::Replica& { return *replicas[static_cast<std::size_t>(i)]; };
  o.progress_count = [at](int i) { return at(i).progress().count() + at(i).context().stream_progress().count; };
  o.waits = [at](int i) { return at(i).context().stream_progress().waits; };
  o.name = [this, at](int i) {
    return fmt::format("{} {} ({})", options.process_group ? "rank" : "replica", at(i).rank(),
                       to_string(options.devices[static_cast<std::size_t>(i)]));
  };
  o.last = [this, at](int i) { return last_of(at(i)); };
  if (o.others)
    o.silent = [this] {
      const std::vector<int> ranks = options.process_group->state().silent_ranks();
      return ranks.empty() ? std::string() : fmt::format("rank {}", fmt::join(ranks, ", rank "));
    };
  o.last_words = [this](const Error& error) {
    if (!options.process_group) return;
    options.process_group->fail(error);
    std::this_thread::sleep_for(kUntilSent);
  };
  watchdog = std::make_unique<engine::Watchdog>(std::move(o));
}

// Describes what a stream waits for, or if it does not wait, what was enqueued last. May be called on any thread.
std::string DataParallel::State::last_of(const engine::Replica& replica) const {
  const engine::Progress& progress = replica.progress();
  const kernels::StreamProgress stream_progress = replica.context().stream_progress();
  engine::Phase phase = progress.phase();
  std::int64_t bucket = progress.bucket();
  if (stream_progress.waits && stream_progress.label <= static_cast<std::size_t>(engine::Phase::broadcast))
    phase = static_cast<engine::Phase>(stream_progress.label);
  if (stream_progress.waits) bucket = engine::bucket_of(stream_progress.detail);
  const bool on_bucket =
      phase == engine::Phase::reduce || phase == engine::Phase::update || phase == engine::Phase::broadcast;
  std::string text = engine::to_string(phase);
  if (on_bucket && bucket >= 0) text += fmt::format(" of bucket {}", bucket);
  text += fmt::format(" of step {}", step);
  if (const std::string* layer = progress.layer()) text += fmt::format(", last layer '{}'", *layer);
  if (!on_bucket && bucket >= 0) text += fmt::format(", last bucket {}", bucket);
  return text;
}

void DataParallel::State::rethrow_cause() const {
  if (watchdog)
    if (const auto verdict = watchdog->verdict()) throw *verdict;
  try {
    throw;
  } catch (const kernels::Aborted&) {
  }
  if (options.process_group) {
    if (const auto failure = options.process_group->failure()) {
      if (failure->code() != ErrorCode::timeout || replicas.empty() || replicas.front() == nullptr) throw *failure;
      throw Error(failure->code(), fmt::format("{}; rank {} was in {}", failure->what(), options.process_group->rank(),
                                               last_of(*replicas.front())));
    }
  }
  throw Error(ErrorCode::usage, "this DataParallel failed in an earlier call; destroy it and make a new one");
}

}  // namespace dp
