#include "engine/train/passes.h"

#include <algorithm>
#include <chrono>

#include "engine/train/metrics.h"
#include "engine/train/views.h"

namespace dp {

void Meter::run() {
  if (running_) return;
  since_ = now();
  running_ = true;
}

void Meter::pause() {
  passed_ = seconds();
  running_ = false;
}

double Meter::seconds() const {
  return passed_ + (running_ ? std::chrono::duration<double>(now() - since_).count() : 0);
}

void Meter::end_warmup() {
  warm_ = true;
  warmup_end_ = mark_ = read();
}

void Meter::mark() { mark_ = read(); }

double Meter::rate_between(const Reading& from, const Reading& to) {
  const double seconds = to.seconds - from.seconds;
  return seconds > 0 ? static_cast<double>(to.images - from.images) / seconds : 0;
}

double Meter::rate() const {
  const Reading now = read();
  return now.images > warmup_end_.images ? rate_between(warmup_end_, now) : rate_between({}, now);
}

double Meter::rate_since_mark() const {
  const Reading now = read();
  return now.images > mark_.images ? rate_between(mark_, now) : rate();
}

double Meter::loading_between(const Reading& from, const Reading& to) {
  const double seconds = to.seconds - from.seconds;
  return seconds > 0 ? std::clamp((to.loading - from.loading) / seconds, 0.0, 1.0) : 0;
}

int loader_threads(const DataParallelOptions& parallel) {
  const int processes = parallel.process_group ? parallel.process_group->local_size() : 1;
  int busy = 0;
  for (const Device& device : parallel.devices)
    busy += device.kind == DeviceKind::cpu ? std::max(parallel.threads_per_replica, 1) : 1;
  return std::clamp(available_cores(processes).cores - busy, 1, 4);
}

const Batch* next_batch(Loader& loader, StopRequest& stop) {
  try {
    return loader.next();
  } catch (...) {
    stop.fail();
    return nullptr;
  }
}

namespace {

// Whether the outputs of an evaluation are kept, from which metrics are computed. `rows`: of this process.
bool can_keep_outputs(const DataParallel& net, std::int64_t rows) {
  constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;  // of all processes
  if (const auto& group = net.options().process_group) rows *= group->size();
  return rows * net.model().output().numel() * static_cast<std::int64_t>(sizeof(float)) <= kMostBytes;
}

// Adds the metrics of all ranks' outputs; none if those of some samples are missing. Every rank calls this.
void add_metrics(const DataParallel& net, const std::vector<OwnMetric>& own,
                 const std::optional<EvaluatedLogits>& outputs, EvalReport& report) {
  std::optional<EvaluatedLogits> gathered;
  if (const auto& group = net.options().process_group)
    gathered = of_all_ranks(outputs.value_or(EvaluatedLogits()), net.model().output().numel(), *group);
  const std::optional<EvaluatedLogits>& all = gathered ? gathered : outputs;
  if (!all || static_cast<std::int64_t>(all->samples.size()) != report.stats.samples) return;
  if (const auto& loss = net.options().output_loss) report.metrics = metrics_of(*all, *loss);
  const Busy busy(net.options().process_group.get());
  for (const OwnMetric& metric : own) report.metrics.push_back({metric.name, Stats::plain(metric.function(*all))});
}

}  // namespace

std::optional<EvalReport> evaluate_all(DataParallel& net, Loader& test, std::int64_t most_batches, StopRequest& stop,
                                       TestAugmentation tta, const std::vector<OwnMetric>& own,
                                       std::optional<EvaluatedLogits>& outputs, const OnWork& on_work) {
  const auto begin = std::chrono::steady_clock::now();
  const std::int64_t batches =
      most_batches > 0 ? std::min(most_batches, test.batches_per_epoch()) : test.batches_per_epoch();
  ProcessGroup* const group = net.options().process_group.get();
  const auto& loss = net.options().output_loss;
  std::int64_t rows = 1;
  for (const std::int64_t size : test.batch_sizes()) rows = std::max(rows, size);
  const bool keeps = can_keep_outputs(net, batches * rows);
  std::optional<ViewEvaluation> views;
  if (tta != TestAugmentation::none) views.emplace(net, tta, rows, keeps);
  const bool measures = !views && (loss || !own.empty()) && keeps && net.store_logits(batches, rows);
  test.start(0);
  if (group != nullptr) {  // the first batch is evaluated by all ranks or by none, because they then exchange data
    const Busy busy(group);
    stop.await(test, 1);
  }
  bool stopped = stop.asked_now();
  if (on_work) on_work({"Test", 0, batches});
  for (std::int64_t done = 0; done < batches && !stopped; ++done) {
    const Batch* const batch = next_batch(test, stop);
    if (batch != nullptr) views ? views->evaluate(*batch) : net.evaluate(*batch);
    stopped = done + 1 < batches ? stop.asked() : stop.asked_now();
    if (on_work) on_work({"Test", stopped ? batches : done + 1, batches});
  }
  EvalReport report;
  report.stats = net.take_stats();
  net.take_phase_times();
  if (stopped) return std::nullopt;
  if (views) views->set_totals(report.stats, group);
  if (views && keeps) outputs = views->take_outputs();
  if (measures) outputs = net.take_logits();
  if (loss || !own.empty()) add_metrics(net, own, outputs, report);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

void prepare_batches(DataParallel& net, const Loader* train, const Loader& test, const Optimizer& optimizer,
                     const OnWork& on_work) {
  if (on_work) on_work({"Planning layers"});
  if (train == nullptr)
    net.prepare({}, test.batch_sizes(), {}, test.resident());
  else
    net.prepare(train->batch_sizes(), test.batch_sizes(), train->resident(), test.resident(), optimizer);
  if (on_work) on_work({"Planning layers", 1, 1});
}

std::int64_t eval_batch_size(const TrainerOptions& options) { return std::max<std::int64_t>(options.batch_size, 128); }

RunSummary describe(const DataParallel& net, const TrainerOptions& options) {
  RunSummary summary;
  summary.model = net.model().name();
  summary.dataset = options.dataset_name;
  summary.devices = net.device_names();
  summary.communicator = net.communicator_choice();
  summary.graphs = net.graphs_choice();
  summary.pipeline = net.describe_pipeline();
  summary.pipeline_stages = net.options().pipeline.stages;
  if (net.options().process_group) summary.engine = "ddp";
  summary.global_batch = options.batch_size;
  summary.classes = net.model().output()[0];
  return summary;
}

void set_result(RunSummary& summary, const EvalReport& test) {
  summary.test_loss = test.stats.loss();
  summary.top1 = test.stats.accuracy1();
  summary.top5 = test.stats.accuracy5();
  summary.metrics = test.metrics;
}

}  // namespace dp
