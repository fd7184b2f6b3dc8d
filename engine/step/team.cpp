#include "engine/step/team.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/step/step_graphs.h"

namespace dp::engine {
namespace {

constexpr auto kUntilSent = std::chrono::milliseconds(200);

}  // namespace

Team::Team(const ModelSetup& model_setup) : setup(model_setup), pool(static_cast<int>(setup.options.devices.size())) {
  if (setup.options.process_group) attached_.to(*setup.options.process_group, pool.abort_flag());
  workers.resize(setup.options.devices.size());
}

Team::~Team() {
  updates_held.wait(true);
  copies_held.wait(true);
  wait_before_destruction();
  watchdog_.reset();
  if (pool.failed()) wait_for_devices_after_failure();
  graphs.reset();
  for (const auto& worker : workers)
    if (worker) worker->compute_communicator.reset();
  for (const auto& worker : workers)
    if (worker && worker->gradient_sync) worker->gradient_sync->stop();
  for (const auto& worker : workers)
    if (worker) worker->gradient_sync.reset();
  forward_links.clear();
  backward_links.clear();
  workers.clear();
}

// After a failure a device may wait for another device that failed, and freeing its memory would block. This waits
// until every device has finished its work. Context::idle() limits the wait.
void Team::wait_for_devices_after_failure() noexcept {
  for (const auto& worker : workers) {
    if (!worker || worker->context().host_accessible()) continue;
    try {
      while (!worker->context().idle()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } catch (const std::exception&) {  // the device has failed and runs nothing
    }
  }
}

// The streams use the links and, on GPUs, the communicators, and they may still run the last step.
void Team::wait_before_destruction() noexcept {
  const bool runs_on =
      std::ranges::any_of(workers, [](const auto& worker) { return worker && !worker->context().host_accessible(); });
  if (pool.failed() || (forward_links.empty() && !runs_on)) return;
  try {
    wait_for_all();
  } catch (const std::exception&) {  // a device has failed and runs nothing
  }
}

void Team::wait_for_all() {
  updates_held.wait(true);
  on_workers([](Worker& worker) {
    if (worker.gradient_sync) worker.gradient_sync->wait_until_idle();
    worker.compute().synchronize();
  });
}

void Team::extend_row_numbers(std::int64_t rows) {
  for (auto next = static_cast<std::int64_t>(row_numbers.size()); next < rows; ++next) row_numbers.push_back(next);
}

void Team::connect_replicas(std::vector<std::unique_ptr<kernels::Communicator>>& all, kernels::Backend& backend,
                            const std::string& communicator) {
  all.resize(workers.size());
  for (int stage = 0; stage < setup.stage_count(); ++stage) {
    std::vector<kernels::Context*> contexts;
    for (int replica = 0; replica < local_replica_count(); ++replica)
      contexts.push_back(&workers[worker_number(replica, stage)]->context());
    auto of_stage = backend.make_communicators(communicator, contexts);
    for (int replica = 0; replica < local_replica_count(); ++replica)
      all[worker_number(replica, stage)] = std::move(of_stage[static_cast<std::size_t>(replica)]);
  }
}

void Team::link_stages(kernels::Backend& backend) {
  if (!setup.pipelined()) return;
  forward_links.resize(workers.size());
  backward_links.resize(workers.size());
  for (std::size_t i = 0; i + 1 < workers.size(); ++i) {
    if (setup.is_last(workers[i]->stage())) continue;
    kernels::Context &here = workers[i]->context(), &next = workers[i + 1]->context();
    forward_links[i] = backend.make_link(here, next);
    backward_links[i] = backend.make_link(next, here);
  }
}

std::vector<kernels::LinkEnd> Team::ends_of_links(std::size_t number) const {
  using enum kernels::Link::End;
  std::vector<kernels::LinkEnd> ends;
  const auto add = [&](std::size_t stage, kernels::Link::End forward, kernels::Link::End backward) {
    if (stage >= forward_links.size() || forward_links[stage] == nullptr) return;
    ends.push_back({forward_links[stage].get(), forward});
    ends.push_back({backward_links[stage].get(), backward});
  };
  add(number, sender, receiver);
  if (number > 0) add(number - 1, receiver, sender);
  return ends;
}

std::vector<GradientNormOfStages> Team::connect_stages_for_norm(const std::vector<std::vector<Bucket>>& buckets) {
  std::vector<GradientNormOfStages> norms(workers.size());
  if (!setup.pipelined() || !setup.update_needs_whole_gradient()) return norms;
  kernels::Backend& backend = kernels::backend(setup.options.devices.front().kind);
  std::vector<std::int64_t> blocks;
  for (std::size_t stage = buckets.size(); stage-- > 0;) blocks.push_back(norm_blocks(buckets[stage]));
  for (int replica = 0; replica < local_replica_count(); ++replica) {
    std::vector<kernels::Context*> contexts;
    for (int stage = setup.stage_count(); stage-- > 0;)
      contexts.push_back(&workers[worker_number(replica, stage)]->context());
    auto of_replica = backend.make_communicators(communicator_name(setup.options.comm), contexts);
    for (int stage = 0; stage < setup.stage_count(); ++stage)
      norms[worker_number(replica, stage)] = {
          std::move(of_replica[static_cast<std::size_t>(setup.stage_count() - 1 - stage)]), blocks};
  }
  return norms;
}

void Team::start_watchdog() {
  WatchdogOptions o;
  o.seconds = *setup.options.timeout_seconds;
  o.stop = setup.options.stop;
  o.replicas = static_cast<int>(workers.size());
  o.abort = pool.abort_flag();
  o.others = setup.options.process_group && setup.replica_count() > 1;
  const auto at = [this](int i) -> const Worker& { return *workers[static_cast<std::size_t>(i)]; };
  o.progress_count = [at](int i) { return at(i).clock.progress().count() + at(i).context().stream_progress().count; };
  o.waits = [at](int i) { return at(i).context().stream_progress().waits; };
  o.name = [this, at](int i) { return name_of(at(i)); };
  o.last = [this, at](int i) { return last_work_of(at(i)); };
  // Under DP_FAIL_GATE a replica that merely gets no core is not taken for a stalled one, and after a stop the test has
  // more time to open the gate. Whether a GPU waits is not known.
  if (stalls_are_gated()) {
    o.after_stop = 10 * kAfterStop;
    o.counts = [this, at] {
      const int stalled = gated_stalls();
      int idle = stalled + pool.finished();
      for (std::size_t i = 0; i < workers.size(); ++i) {
        const kernels::Context& context = at(static_cast<int>(i)).context();
        idle += context.stream_progress().waits || context.device().kind == DeviceKind::cuda;
      }
      return stalled > 0 && idle >= static_cast<int>(workers.size());
    };
  }
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

std::string Team::name_of(const Worker& worker) const {
  const std::string stage = setup.pipelined() ? fmt::format(" stage {}", worker.stage()) : std::string();
  return fmt::format("{} {}{} ({})", setup.options.process_group ? "rank" : "replica", worker.rank(), stage,
                     to_string(setup.options.devices[worker.number]));
}

std::string Team::text_of(Phase phase, int item) const {
  const bool passes = phase == Phase::forward || phase == Phase::loss || phase == Phase::backward;
  if (!setup.pipelined() || !passes || item < 0) return fmt::format("{} of step {}", to_string(phase), step);
  return fmt::format("{} of micro-batch {} of step {}", to_string(phase), item, step);
}

// Describes what a stream waits for, or if it does not wait, what was enqueued last. May be called on any thread.
std::string Team::last_work_of(const Worker& worker) const {
  const Progress& progress = worker.clock.progress();
  const kernels::StreamProgress stream_progress = worker.context().stream_progress();
  Phase phase = progress.phase();
  std::int64_t bucket = progress.bucket();
  int item = progress.item();
  if (stream_progress.waits && stream_progress.label <= static_cast<std::size_t>(Phase::broadcast))
    phase = static_cast<Phase>(stream_progress.label);
  if (stream_progress.waits) {
    bucket = bucket_of(stream_progress.detail);
    if (const int waiting = item_of(stream_progress.detail); waiting >= 0) item = waiting;
  }
  const bool on_bucket = phase == Phase::reduce || phase == Phase::update || phase == Phase::broadcast;
  std::string text = on_bucket && bucket >= 0
                         ? fmt::format("{} of bucket {} of step {}", to_string(phase), bucket, step)
                         : text_of(phase, item);
  if (const std::string* layer = progress.layer()) text += fmt::format(", last layer '{}'", *layer);
  if (!on_bucket && bucket >= 0) text += fmt::format(", last bucket {}", bucket);
  return text;
}

void Team::rethrow_cause() const {
  if (watchdog_)
    if (const auto verdict = watchdog_->verdict()) throw *verdict;
  try {
    throw;
  } catch (const kernels::Aborted&) {
  }
  if (setup.options.process_group) {
    if (const auto failure = setup.options.process_group->failure()) {
      if (failure->code() != ErrorCode::timeout || workers.empty() || workers.front() == nullptr) throw *failure;
      throw Error(failure->code(), fmt::format("{}; rank {} was in {}", failure->what(),
                                               setup.options.process_group->rank(), last_work_of(*workers.front())));
    }
  }
  throw Error(ErrorCode::usage, "this DataParallel failed in an earlier call; destroy it and make a new one");
}

void Team::rethrow_with_place(const Worker& worker) const {
  const std::string place =
      fmt::format("{} failed in {}: ", name_of(worker), text_of(worker.clock.phase(), worker.clock.progress().item()));
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
