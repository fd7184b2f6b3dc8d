// A DataParallel's calls under a watchdog.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <thread>

#include "dp/error.h"
#include "engine/parallel/data_parallel_state.h"
#include "engine/process_group/world_state.h"

namespace dp {
namespace {

constexpr auto kUntilSent = std::chrono::milliseconds(200);

}  // namespace

void DataParallel::State::watch() {
  engine::WatchdogOptions o;
  o.seconds = *options.timeout_seconds;
  o.replicas = static_cast<int>(replicas.size());
  o.abort = pool.abort_flag();
  o.others = options.world && size() > 1;
  const auto at = [this](int i) -> const engine::Replica& { return *replicas[static_cast<std::size_t>(i)]; };
  o.moves = [at](int i) { return at(i).activity().moves() + at(i).context().doing().moves; };
  o.waits = [at](int i) { return at(i).context().doing().waits; };
  o.name = [this, at](int i) {
    return fmt::format("{} {} ({})", options.world ? "rank" : "replica", at(i).rank(),
                       to_string(options.devices[static_cast<std::size_t>(i)]));
  };
  o.last = [this, at](int i) { return last_of(at(i)); };
  if (o.others)
    o.silent = [this] {
      const std::vector<int> ranks = options.world->state().silent_ranks();
      return ranks.empty() ? std::string() : fmt::format("rank {}", fmt::join(ranks, ", rank "));
    };
  o.last_words = [this](const Error& error) {
    if (!options.world) return;
    options.world->fail(error);
    std::this_thread::sleep_for(kUntilSent);
  };
  watchdog = std::make_unique<engine::Watchdog>(std::move(o));
}

// From any thread. What a stream waits for says more than what was enqueued last.
std::string DataParallel::State::last_of(const engine::Replica& replica) const {
  const engine::Activity& activity = replica.activity();
  const kernels::Doing doing = replica.context().doing();
  engine::Phase phase = activity.phase();
  std::int64_t bucket = activity.bucket();
  if (doing.waits && doing.label <= static_cast<std::size_t>(engine::Phase::broadcast))
    phase = static_cast<engine::Phase>(doing.label);
  if (doing.waits) bucket = engine::bucket_of(doing.detail);
  const bool on_bucket =
      phase == engine::Phase::reduce || phase == engine::Phase::update || phase == engine::Phase::broadcast;
  std::string text = engine::to_string(phase);
  if (on_bucket && bucket >= 0) text += fmt::format(" of bucket {}", bucket);
  text += fmt::format(" of step {}", step);
  if (const std::string* layer = activity.layer()) text += fmt::format(", last layer '{}'", *layer);
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
  if (options.world) {
    if (const auto failure = options.world->failure()) {
      if (failure->code() != ErrorCode::timeout || replicas.empty() || replicas.front() == nullptr) throw *failure;
      throw Error(failure->code(), fmt::format("{}; rank {} was in {}", failure->what(), options.world->rank(),
                                               last_of(*replicas.front())));
    }
  }
  throw Error(ErrorCode::usage, "this DataParallel failed in an earlier call; destroy it and make a new one");
}

}  // namespace dp
