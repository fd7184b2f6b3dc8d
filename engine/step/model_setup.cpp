#include "engine/step/model_setup.h"

#include <algorithm>
#include <limits>

#include "dp/error.h"
#include "engine/plan/op_work.h"
#include "engine/step/bucket_tuning.h"
#include "engine/step/memory/memory_room.h"
#include "engine/step/pipeline/measured_seconds.h"
#include "engine/step/pipeline/schedule.h"

namespace dp::engine {
namespace {

constexpr std::size_t kParameterCopies = 2;  // at least: weights and gradients
// The modelled device computes this many operations in the time that it takes to read or write one byte. The ratio is
// a constant, so every run and every estimate chooses the same cuts.
constexpr double kFlopsPerByte = 10;

// Calls f(part, plan) for each part of the model, in order. The plan has `rows` rows and chooses the part's parameter
// layouts. Each part reads the output of the previous part.
template <typename F>
void for_each_part(const ModelSetup& setup, const std::vector<Model>& parts, kernels::Context& context,
                   std::int64_t rows, F&& f) {
  PlanOptions options = setup.plan_options(0, rows, /*training=*/true, /*accumulate=*/false, /*gathers_logits=*/true);
  for (const Model& part : parts) {
    options.last = &part == &parts.back();
    const NormTable norms(part);
    const Plan plan(part, context, options, /*table=*/nullptr, norms);
    f(part, plan);
    if (!options.last) options.input = plan.output().desc;
  }
}

std::size_t memory_per_device(const DataParallelOptions& options) {
  if (const auto limit = replica_limit(); limit && options.devices.front().kind != DeviceKind::cuda) return *limit;
  const std::optional<Room> room = room_on(options.devices.front());
  if (!room) return std::numeric_limits<std::size_t>::max();
  const auto sharing = std::ranges::count(options.devices, options.devices.front());
  return room->bytes / static_cast<std::size_t>(sharing);
}

// Returns the cost of the layers between each two neighbouring cuts. `open` returns contexts to measure on. If it is
// empty, costs are modelled.
std::vector<PieceCost> costs_between(const ModelSetup& setup, const std::vector<Cut>& cuts, kernels::Context& context,
                                     const OpenContext& open) {
  const kernels::Rates rates{.flops = kFlopsPerByte, .bytes = 1, .source = "modelled"};
  std::vector<PieceCost> costs;
  for_each_part(setup, split(setup.model, cuts), context, open ? kMeasuredRows : kLayoutRows,
                [&](const Model& piece, const Plan& plan) {
                  const std::size_t bytes =
                      static_cast<std::size_t>(piece.parameter_count()) * size_of(context.compute_type());
                  const double seconds = open ? measured_seconds(setup, piece, plan, open) : floor_of(plan, rates);
                  costs.push_back({seconds, kParameterCopies * bytes});
                });
  return costs;
}

// Divides the mean time of the stages by the time of the slowest stage. `chosen`: the cuts between the stages.
double balance_of(const std::vector<PieceCost>& costs, const std::vector<int>& chosen) {
  double all = 0, slowest = 0, stage = 0;
  for (std::size_t piece = 0, next = 0; piece < costs.size(); ++piece) {
    stage += costs[piece].seconds, all += costs[piece].seconds;
    const bool ends =
        next < chosen.size() ? static_cast<std::size_t>(chosen[next]) == piece : piece + 1 == costs.size();
    if (!ends) continue;
    slowest = std::max(slowest, stage);
    stage = 0, ++next;
  }
  return all / slowest / static_cast<double>(chosen.size() + 1);
}

}  // namespace

Stage::Stage(Model part, const DataParallelOptions& options) : model(std::move(part)), norms(model) {
  const int shards = shards_of(options);
  if (options.batch_norm == BatchNormMode::sync) forward_all_gathers = engine::forward_all_gathers(norms, shards);
  if (options.batch_norm == BatchNormMode::pooled) pooled_all_gathers = engine::forward_all_gathers(norms, shards);
}

void ModelSetup::make_stages(kernels::Context& context, const OpenContext& open) {
  if (model.parameters().empty())
    throw Error(ErrorCode::usage, "model '" + model.name() + "' has no parameters to train");
  check_groups(options.parameter_groups, model);
  frozen_ = frozen_parameters(options.parameter_groups, model);
  if (pipelined()) choose_cuts(context, open);
  const std::vector<Model> parts = split(model, cuts);
  for_each_part(*this, parts, context, kLayoutRows, [&](const Model& part, const Plan& plan) {
    Stage& stage = stages.emplace_back(part, options);
    stage.table = std::make_unique<ParameterTable>(part, plan.parameter_layouts(), context.compute_type(),
                                                   bucket_granularity(options), vectors_first(options));
    stage.groups = std::make_unique<ParameterGroups>(options.parameter_groups, *stage.table);
    stage.backward_all_gathers = plan.backward_all_gathers();
    if (stage.backward_all_gathers.empty()) return;
    stage.ready_in_segment.resize(1);
    for (const PlanStep& step : plan.backward()) {
      if (step.ready_from >= 0) stage.ready_in_segment.back().push_back(step.ready_from);
      if (step.ends_segment) stage.ready_in_segment.emplace_back();
    }
  });
}

void ModelSetup::choose_cuts(kernels::Context& context, const OpenContext& open) {
  const std::vector<Cut> all = possible_cuts(model);
  std::vector<int> chosen = cuts_named(all, options.pipeline.cuts);
  const bool measures = options.pipeline.measured && chosen.empty();
  const std::vector<PieceCost> costs = costs_between(*this, all, context, measures ? open : OpenContext());
  if (chosen.empty()) chosen = balanced_cuts(all, costs, stage_count(), memory_per_device(options));
  for (const int index : chosen) cuts.push_back(all[static_cast<std::size_t>(index)]);
  balance = balance_of(costs, chosen);
}

ReplicaOptions ModelSetup::replica_options(int rank, int stage_index) const {
  ReplicaOptions replica{.rank = rank,
                         .stage = stage_index,
                         .local_shards = local_shards(),
                         .shards = shards(),
                         .scales_loss = scales_loss(),
                         .target_bytes = target_bytes(/*training=*/true)};
  if (pipelined()) {
    replica.micro_batches = options.grad_accum_steps;
    const int in_flight = most_in_flight(actions_of(options.pipeline.schedule, stage_index, stage_count(),
                                                    replica.micro_batches * replica.local_shards))
                              .items;
    replica.lanes = recomputes(stage_index) ? 1 : in_flight;
    replica.saved_inputs = recomputes(stage_index) && stage_index > 0 ? in_flight : 0;
  } else if (!stage(stage_index).forward_all_gathers.empty()) {
    replica.lanes = replica.local_shards;  // all shards run interleaved
  }
  return replica;
}

Arenas::Sizes ModelSetup::sizes_of(int rank, int stage_index, const kernels::Context& context) const {
  const Stage& own = stage(stage_index);
  return Arenas::sizes(*own.table, own.norms, context, replica_options(rank, stage_index));
}

std::vector<Bucket> ModelSetup::buckets_of(const Stage& stage, std::size_t usual_bytes) const {
  // The gradient's norm is the sum of partial sums of the buckets. If it is needed, a bucket also ends at every place
  // where a stage may end. The norm then has the same bits for any number of stages.
  std::vector<int> ends;
  if (update_needs_whole_gradient())
    for (const Cut& cut : possible_cuts(stage.model)) {
      const auto first = std::ranges::find_if(stage.model.parameters(),
                                              [&](const ParameterSpec& spec) { return spec.layer >= cut.layer; });
      ends.push_back(static_cast<int>(first - stage.model.parameters().begin()));
    }
  std::vector<Bucket> buckets =
      options.bucket_bytes != 0 || update_needs_whole_gradient()
          ? stage.table->buckets(options.bucket_bytes != 0 ? options.bucket_bytes : usual_bytes, /*last_bytes=*/0, ends)
          : automatic_buckets(options, *stage.table, usual_bytes);
  if (!pipelined() && !frozen_.empty()) stage.table->trim(buckets, frozen_);
  return buckets;
}

std::size_t ModelSetup::parameter_bytes() const {
  std::size_t bytes = 0;
  for (const Stage& stage : stages) bytes += stage.table->bytes();
  return bytes;
}

const Norm* ModelSetup::first_norm_on_1x1_images() const {
  for (const Stage& stage : stages)
    if (const Norm* const norm = stage.norms.first_on_1x1_images()) return norm;
  return nullptr;
}

}  // namespace dp::engine
