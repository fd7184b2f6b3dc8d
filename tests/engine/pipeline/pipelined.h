// Trains the same micro-batches with and without a pipeline.
#pragma once

#include <vector>

#include "support/training.h"

namespace dp::test {

using enum PipelineSchedule;
inline constexpr PipelineSchedule kSchedules[] = {one_at_a_time, gpipe, one_f_one_b, zero_bubble};

// Replicas of several stages each.
struct Layout {
  int replicas, stages, micro_batches;
};

// What some steps leave behind.
struct Trained {
  std::vector<NamedTensor> state;  // weights, running statistics, optimizer state, gradients and the average
  Stats stats;
};
// Trains five steps. Every second batch has half as many rows.
Trained train(const Model& model, const DataParallelOptions& options, std::int64_t rows);
void check_same(const Trained& one, const Trained& other);

// `options` for one device, on the devices of the layout.
DataParallelOptions pipelined(DataParallelOptions options, const Layout& layout, PipelineSchedule schedule);
DataParallelOptions accumulating(DataParallelOptions options, const Layout& layout);  // without a pipeline

// Checks schedules against the same micro-batches on one device per replica.
void check_schedules(const Model& model, const DataParallelOptions& options, const Layout& layout, std::int64_t rows,
                     const std::vector<PipelineSchedule>& schedules = {std::begin(kSchedules), std::end(kSchedules)});
// Checks that eight logical shards give the same bits on all layouts, with clipping and dropout.
void check_logical_shards(BatchNormMode mode, std::int64_t rows, const std::vector<Layout>& layouts,
                          const std::vector<PipelineSchedule>& schedules);

}  // namespace dp::test
