#include "engine/parallel/replica_set.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <thread>

namespace dp::engine {
namespace {

constexpr auto kUntilSent = std::chrono::milliseconds(200);

}  // namespace

ReplicaSet::ReplicaSet(const ModelSetup& model_setup)
    : setup(model_setup), pool(static_cast<int>(setup.options.devices.size())) {
  if (setup.options.process_group) attached_.to(*setup.options.process_group, pool.abort_flag());
  replicas.resize(setup.options.devices.size());
  gradient_syncs.resize(setup.options.devices.size());
}

ReplicaSet::~ReplicaSet() {
  stop();
  io.clear();
  for (const auto& gradient_sync : gradient_syncs)
    if (gradient_sync) gradient_sync->stop();
  gradient_syncs.clear();
  replicas.clear();
}

void ReplicaSet::stop() noexcept {
  watchdog_.reset();
  if (pool.failed()) await_devices();
}

// After a failure a device may wait for another device that failed, and freeing its memory would block. This waits
// until every device has finished its work. Context::idle() limits the wait.
void ReplicaSet::await_devices() noexcept {
  for (const auto& replica : replicas) {
    if (!replica || replica->context().host_accessible()) continue;
    try {
      while (!replica->context().idle()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } catch (const std::exception&) {  // the device has failed and runs nothing
    }
  }
}

void ReplicaSet::wait_for_all() {
  on_replicas([](Replica& replica, GradientSync& gradient_sync) {
    gradient_sync.synchronize();
    replica.compute().synchronize();
  });
}

void ReplicaSet::watch() {
  WatchdogOptions o;
  o.seconds = *setup.options.timeout_seconds;
  o.replicas = static_cast<int>(replicas.size());
  o.abort = pool.abort_flag();
  o.others = setup.options.process_group && setup.size() > 1;
  const auto at = [this](int i) -> const Replica& { return *replicas[static_cast<std::size_t>(i)]; };
  o.progress_count = [at](int i) { return at(i).progress().count() + at(i).context().stream_progress().count; };
  o.waits = [at](int i) { return at(i).context().stream_progress().waits; };
  o.name = [this, at](int i) {
    return fmt::format("{} {} ({})", setup.options.process_group ? "rank" : "replica", at(i).rank(),
                       to_string(setup.options.devices[static_cast<std::size_t>(i)]));
  };
  o.last = [this, at](int i) { return last_of(at(i)); };
  if (o.others)
    o.silent = [this] {
      const std::vector<int> ranks = setup.options.process_group->state().silent_ranks();
      return ranks.empty() ? std::string() : fmt::format("rank {}", fmt::join(ranks, ", rank "));
    };
  o.last_words = [this](const Error& error) {
    if (!setup.options.process_group) return;
    setup.options.process_group->fail(error);
    std::this_thread::sleep_for(kUntilSent);
  };
  watchdog_ = std::make_unique<Watchdog>(std::move(o));
}

// Describes what a stream waits for, or if it does not wait, what was enqueued last. May be called on any thread.
std::string ReplicaSet::last_of(const Replica& replica) const {
  const Progress& progress = replica.progress();
  const kernels::StreamProgress stream_progress = replica.context().stream_progress();
  Phase phase = progress.phase();
  std::int64_t bucket = progress.bucket();
  if (stream_progress.waits && stream_progress.label <= static_cast<std::size_t>(Phase::broadcast))
    phase = static_cast<Phase>(stream_progress.label);
  if (stream_progress.waits) bucket = bucket_of(stream_progress.detail);
  const bool on_bucket = phase == Phase::reduce || phase == Phase::update || phase == Phase::broadcast;
  std::string text = to_string(phase);
  if (on_bucket && bucket >= 0) text += fmt::format(" of bucket {}", bucket);
  text += fmt::format(" of step {}", step);
  if (const std::string* layer = progress.layer()) text += fmt::format(", last layer '{}'", *layer);
  if (!on_bucket && bucket >= 0) text += fmt::format(", last bucket {}", bucket);
  return text;
}

void ReplicaSet::rethrow_cause() const {
  if (watchdog_)
    if (const auto verdict = watchdog_->verdict()) throw *verdict;
  try {
    throw;
  } catch (const kernels::Aborted&) {
  }
  if (setup.options.process_group) {
    if (const auto failure = setup.options.process_group->failure()) {
      if (failure->code() != ErrorCode::timeout || replicas.empty() || replicas.front() == nullptr) throw *failure;
      throw Error(failure->code(), fmt::format("{}; rank {} was in {}", failure->what(),
                                               setup.options.process_group->rank(), last_of(*replicas.front())));
    }
  }
  throw Error(ErrorCode::usage, "this DataParallel failed in an earlier call; destroy it and make a new one");
}

void ReplicaSet::rethrow_with_place(const Replica& replica) const {
  const Device device = setup.options.devices[local(replica)];
  const std::string place =
      fmt::format("{} {} ({}) failed in {} of step {}: ", setup.options.process_group ? "rank" : "replica",
                  replica.rank(), to_string(device), to_string(replica.phase()), step);
  try {
    throw;
  } catch (const Error& error) {
    throw Error(error.code(), place + error.what(), error.others());
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::device, place + "out of host memory; use a smaller batch or fewer replicas");
  } catch (const std::exception& error) {
    throw Error(ErrorCode::device, place + error.what());
  }
}

}  // namespace dp::engine
