#include "engine/parallel/step_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <new>

#include "dp/error.h"
#include "dp/process_group.h"
#include "engine/base/files.h"
#include "engine/observe/tracer.h"
#include "engine/parallel/layer_times.h"
#include "engine/plan/op_work.h"

namespace dp::engine {
namespace {

constexpr std::size_t kPart = 60 * 1024;  // bytes per rank in one exchange
constexpr std::size_t kExchanges = 7;     // exchanges for comparing clocks
using Moments = std::array<std::int64_t, kExchanges>;

// Difference of rank 0's clock to this rank's, in the clock's unit. 0 if all ranks are on one host. Otherwise both
// ranks read their clocks after the same exchange; the result is the median over kExchanges.
std::int64_t clock_offset(ProcessGroup& group) {
  if (group.one_host()) return 0;
  Moments mine{};
  for (std::int64_t& moment : mine) {
    group.exchange("");
    moment = kernels::trace_clock();
  }
  const std::string first = group.from_first({reinterpret_cast<const char*>(mine.data()), sizeof mine});
  if (first.size() != sizeof mine)
    throw Error(ErrorCode::usage, "the ranks run different builds of the program; start the same build on every host");
  Moments differences{};
  std::memcpy(differences.data(), first.data(), sizeof differences);
  for (std::size_t i = 0; i < kExchanges; ++i) differences[i] -= mine[i];
  std::nth_element(differences.begin(), differences.begin() + kExchanges / 2, differences.end());
  return differences[kExchanges / 2];
}

// Rank 0: the texts of all ranks, in rank order. Other ranks: empty strings.
std::vector<std::string> collect(ProcessGroup& group, const std::string& mine) {
  std::size_t longest = 0;
  for (const std::string& length : group.exchange(std::to_string(mine.size())))
    longest = std::max<std::size_t>(longest, std::stoull(length));
  std::vector<std::string> all(static_cast<std::size_t>(group.size()));
  for (std::size_t begin = 0; begin < longest; begin += kPart) {
    const auto parts = group.exchange(begin < mine.size() ? std::string_view(mine).substr(begin, kPart) : "");
    if (!group.leads()) continue;
    for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank] += parts[rank];
  }
  return all;
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) {
    if (text.empty()) continue;
    if (!all.empty()) all += ",\n";
    all += text;
  }
  return all;
}

// Adds the spans of all finished work to the worker's tracer.
void trace(Worker& worker) {
  worker.clock.trace(*worker.tracer);
  worker.gradient_sync->trace(*worker.tracer);
}

}  // namespace

std::int64_t write_trace(Team& team, const ModelSetup& setup, const std::vector<std::string>& device_names,
                         const std::string& file) {
  ProcessGroup* const group = setup.options.process_group.get();
  if (team.workers.front()->tracer == nullptr) throw Error(ErrorCode::usage, "tracing is off; set trace_steps");
  for (const auto& worker : team.workers) trace(*worker);
  const std::int64_t offset = group != nullptr ? clock_offset(*group) : 0;
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  std::int64_t zero = kNever;
  for (const auto& worker : team.workers) zero = std::min(zero, first_moment(*worker->tracer));
  if (group != nullptr) {
    if (zero != kNever) zero += offset;
    for (const std::int64_t first : team.values_of_all_ranks(zero)) zero = std::min(zero, first);
  }
  std::vector<std::string> events;
  std::int64_t steps = 0, dropped = 0;
  for (const auto& worker : team.workers) {
    const int number = group != nullptr ? worker->rank() : static_cast<int>(worker->number);  // of all devices
    const std::string stage = setup.pipelined() ? fmt::format(" stage {}", worker->stage()) : std::string();
    const std::string name = fmt::format("{} {}{} ({})", group != nullptr ? "rank" : "replica", worker->rank(), stage,
                                         device_names[static_cast<std::size_t>(number)]);
    TraceText text = trace_text(*worker->tracer, number, name, zero - offset);
    events.push_back(std::move(text.events));
    steps = std::max(steps, text.steps);
    dropped += text.dropped;
  }
  if (group != nullptr) {
    events = collect(*group, events.front());
    const std::vector<std::int64_t> all_dropped = team.values_of_all_ranks(dropped);
    dropped = 0;
    for (const std::int64_t of_rank : all_dropped) dropped += of_rank;
    if (!group->leads()) return steps;
  }
  write_file_atomically(
      file,
      fmt::format(
          "{{\"traceEvents\":[\n{}\n],\"displayTimeUnit\":\"ms\",\"otherData\":{{\"steps\":{},\"dropped\":{}}}}}\n",
          joined(events), steps, dropped));
  return steps;
}

std::vector<LayerTime> layer_times(Team& team, const ModelSetup& setup) {
  if (team.workers.front()->tracer == nullptr) throw Error(ErrorCode::usage, "tracing is off; set trace_steps");
  kernels::Rates rates;
  team.on_first_worker([&](Worker& worker) { rates = worker.context().rates(); });
  std::vector<LayerTime> times;
  for (int stage = 0; stage < setup.stage_count(); ++stage) {
    Worker& worker = *team.workers[team.worker_number(0, stage)];
    trace(worker);
    std::ranges::move(layer_times(worker.runner, *worker.tracer, rates), std::back_inserter(times));
  }
  return times;
}

double step_floor(Team& team, const ModelSetup& setup, std::int64_t batch) {
  const std::int64_t local =
      setup.options.process_group ? (batch + setup.replica_count() - 1) / setup.replica_count() : batch;
  const bool same_rates = setup.options.devices.front().kind != DeviceKind::cuda;
  const auto plans_of = [&](const Worker& worker) {
    std::vector<const Plan*> plans;
    for (int micro = 0; micro < setup.options.grad_accum_steps; ++micro)
      for (int shard = 0; shard < worker.local_shards(); ++shard) {
        const std::int64_t rows =
            setup.rows_of(setup.rows_of_micro_batch(local, micro).size(), worker.rank(), shard).size();
        const bool gathers_logits = setup.options.loss == LossAt::gathered;
        if (rows > 0)
          plans.push_back(
              worker.runner.find_plan(setup.plan_options(worker.stage(), rows, true, micro > 0, gathers_logits)));
      }
    std::erase(plans, nullptr);
    return plans;
  };
  kernels::Rates first;  // measured once for all CPU replicas, because it takes memory and time
  team.on_first_worker([&](Worker& worker) {
    try {
      if (!plans_of(worker).empty()) first = worker.context().rates();
    } catch (const std::bad_alloc&) {  // the rates stay unknown
    }
  });
  std::vector<double> seconds(team.workers.size());
  team.on_workers([&](Worker& worker) {
    const std::vector<const Plan*> plans = plans_of(worker);
    const kernels::Rates rates = same_rates || plans.empty() ? first : worker.context().rates();
    for (const Plan* const plan : plans) seconds[worker.number] += floor_of(*plan, rates);
  });
  return *std::ranges::max_element(seconds);
}

}  // namespace dp::engine
