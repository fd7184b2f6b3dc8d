// What a DataParallel tells about itself: statistics, times, memory, plans.
#include <fmt/format.h>

#include "dp/error.h"
#include "engine/data_parallel_state.h"

namespace dp {

Stats DataParallel::take_stats() {
  State& s = *state_;
  std::vector<kernels::StepResults> results(s.replicas.size());
  s.on_replicas([&](engine::Replica& replica, engine::Exchange& exchange) {
    exchange.synchronize();
    auto& result = results[static_cast<std::size_t>(replica.rank())];
    result = replica.take_results();
    if (s.options.on_nonfinite == OnNonfinite::abort && (result.nonfinite != 0 || result.grad_nonfinite != 0)) {
      replica.enter(result.nonfinite ? engine::Phase::loss : engine::Phase::update);
      throw Error(ErrorCode::nonfinite, "a loss or gradient of this step or one since the last report is not finite");
    }
  });
  Stats stats;
  for (const kernels::StepResults& result : results) {
    stats.loss_sum += result.loss_sum;
    stats.samples += result.samples;
    stats.top1 += result.top1;
    stats.top5 += result.top5;
  }
  stats.skipped = results.front().skipped_steps;
  stats.grad_norm = results.front().grad_norm;
  return stats;
}

std::vector<PhaseTimes> DataParallel::take_phase_times() {
  std::vector<PhaseTimes> times;
  for (const auto& replica : state_->replicas) times.push_back(std::exchange(replica->times, {}));
  return times;
}

const Model& DataParallel::model() const { return state_->model; }
const DataParallelOptions& DataParallel::options() const { return state_->options; }

std::size_t DataParallel::device_bytes(int replica) const {
  return state_->replicas.at(static_cast<std::size_t>(replica))->bytes_held();
}

std::string DataParallel::describe_plan(std::int64_t global_batch) const {
  State& s = *state_;
  std::string text = fmt::format("model {}: {} parameters, {:.1f} MiB a copy\n", s.model.name(),
                                 s.model.parameter_count(), static_cast<double>(s.table->bytes()) / (1 << 20));
  for (const auto& entry : s.table->entries())
    text += fmt::format("  {:<24} {:<20} at {:>10}  {}\n", entry.name, to_string(entry.shape), entry.offset,
                        entry.layout.name);
  text += "buckets, in the order in which they become ready\n";
  for (const auto& bucket : s.exchanges.front()->buckets())
    text += fmt::format(
        "  {:>10} to {:>10}  {:.2f} MiB  from {}\n", bucket.range.begin, bucket.range.end,
        static_cast<double>(bucket.range.size()) * static_cast<double>(size_of(s.table->type())) / (1 << 20),
        s.table->entry(bucket.first_entry).name);
  std::string plans;
  const std::int64_t micro = engine::shard_of(global_batch, 0, s.options.grad_accum_steps, Split::balanced).size();
  s.on_master([&](engine::Replica& replica, engine::Exchange&) {
    plans =
        replica.plan(s.plan_options(split_batch(micro, s.size(), s.options.split).front(), true, false)).describe() +
        replica.plan(s.plan_options(split_batch(global_batch, s.size(), s.options.split).front(), false, false))
            .describe();
  });
  return text + plans;
}

}  // namespace dp
