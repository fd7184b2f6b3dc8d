// Writes the timeline of all replicas' steps to one file.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <new>

#include "dp/error.h"
#include "dp/process_group.h"
#include "engine/base/atomic_text.h"
#include "engine/observe/trace_text.h"
#include "engine/parallel/data_parallel_state.h"
#include "engine/parallel/layer_times.h"
#include "engine/plan/op_work.h"

namespace dp {
namespace {

constexpr std::size_t kPart = 60 * 1024;  // bytes per rank in one exchange
constexpr std::size_t kRounds = 7;        // exchanges for comparing clocks
using Moments = std::array<std::int64_t, kRounds>;

// Difference of rank 0's clock to this rank's, in the clock's unit. 0 if all ranks are on one host. Otherwise both
// ranks read their clocks after the same exchange; the result is the median over kRounds.
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
  for (std::size_t i = 0; i < kRounds; ++i) differences[i] -= mine[i];
  std::nth_element(differences.begin(), differences.begin() + kRounds / 2, differences.end());
  return differences[kRounds / 2];
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

}  // namespace

void DataParallel::State::make_tracers() {
  for (std::size_t r = 0; r < team.replicas.size(); ++r) {
    team.tracers.push_back(std::make_unique<engine::Tracer>(setup.options.trace_first, setup.options.trace_steps));
    team.replicas[r]->trace(*team.tracers[r]);
    team.gradient_syncs[r]->trace(*team.tracers[r]);
    if (!team.io.empty()) team.io[r]->trace(&team.tracers[r]->compute);
  }
}

std::int64_t DataParallel::write_trace(const std::string& file) {
  State& s = *state_;
  ProcessGroup* const group = s.setup.options.process_group.get();
  if (s.team.tracers.empty()) throw Error(ErrorCode::usage, "tracing is off; set trace_steps");
  for (std::size_t r = 0; r < s.team.replicas.size(); ++r) {
    s.team.replicas[r]->trace(*s.team.tracers[r]);
    s.team.gradient_syncs[r]->trace(*s.team.tracers[r]);
  }
  const std::int64_t offset = group != nullptr ? clock_offset(*group) : 0;
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  std::int64_t zero = kNever;
  for (const auto& tracer : s.team.tracers) zero = std::min(zero, engine::first_moment(*tracer));
  if (group != nullptr) {
    if (zero != kNever) zero += offset;
    for (const std::int64_t first : s.team.of_all_ranks(zero)) zero = std::min(zero, first);
  }
  std::vector<std::string> events;
  std::int64_t steps = 0, dropped = 0;
  for (std::size_t r = 0; r < s.team.tracers.size(); ++r) {
    const engine::Replica& replica = *s.team.replicas[r];
    const int number = group != nullptr ? replica.rank() : static_cast<int>(r);  // of all devices
    const std::string stage = s.setup.pipelined() ? fmt::format(" stage {}", replica.stage()) : std::string();
    const std::string name = fmt::format("{} {}{} ({})", group != nullptr ? "rank" : "replica", replica.rank(), stage,
                                         s.device_names[static_cast<std::size_t>(number)]);
    engine::TraceText text = engine::trace_text(*s.team.tracers[r], number, name, zero - offset);
    events.push_back(std::move(text.events));
    steps = std::max(steps, text.steps);
    dropped += text.dropped;
  }
  if (group != nullptr) {
    events = collect(*group, events.front());
    const std::vector<std::int64_t> all_dropped = s.team.of_all_ranks(dropped);
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

std::vector<LayerTime> DataParallel::layer_times() {
  State& s = *state_;
  if (s.team.tracers.empty()) throw Error(ErrorCode::usage, "tracing is off; set trace_steps");
  kernels::Rates rates;
  s.team.on_first([&](engine::Replica& replica, engine::GradientSync&) { rates = replica.context().rates(); });
  std::vector<LayerTime> times;
  for (int stage = 0; stage < s.setup.stage_count(); ++stage) {
    const std::size_t number = s.team.number(0, stage);
    s.team.replicas[number]->trace(*s.team.tracers[number]);
    s.team.gradient_syncs[number]->trace(*s.team.tracers[number]);
    std::ranges::move(engine::layer_times(*s.team.replicas[number], *s.team.tracers[number], rates),
                      std::back_inserter(times));
  }
  return times;
}

double DataParallel::step_floor(std::int64_t batch) const {
  State& s = *state_;
  const engine::ModelSetup& setup = s.setup;
  const std::int64_t local = setup.options.process_group ? (batch + setup.size() - 1) / setup.size() : batch;
  const bool same_rates = setup.options.devices.front().kind != DeviceKind::cuda;
  const auto plans_of = [&](engine::Replica& replica) {
    std::vector<const engine::Plan*> plans;
    for (int micro = 0; micro < setup.options.grad_accum_steps; ++micro)
      for (int shard = 0; shard < replica.local_shards(); ++shard) {
        const std::int64_t rows = setup.rows_of(setup.micro_batch(local, micro).size(), replica.rank(), shard).size();
        const bool gathers = setup.options.loss == LossAt::gathered;
        if (rows > 0)
          plans.push_back(replica.find_plan(setup.plan_options(replica.stage(), rows, true, micro > 0, gathers)));
      }
    std::erase(plans, nullptr);
    return plans;
  };
  kernels::Rates first;  // measured once for all CPU replicas, because it takes memory and time
  s.team.on_first([&](engine::Replica& replica, engine::GradientSync&) {
    try {
      if (!plans_of(replica).empty()) first = replica.context().rates();
    } catch (const std::bad_alloc&) {  // the rates stay unknown
    }
  });
  std::vector<double> seconds(s.team.replicas.size());
  s.team.on_replicas([&](engine::Replica& replica, engine::GradientSync&) {
    const std::vector<const engine::Plan*> plans = plans_of(replica);
    const kernels::Rates rates = same_rates || plans.empty() ? first : replica.context().rates();
    for (const engine::Plan* const plan : plans) seconds[s.team.local(replica)] += engine::floor_of(*plan, rates);
  });
  return *std::ranges::max_element(seconds);
}

}  // namespace dp
