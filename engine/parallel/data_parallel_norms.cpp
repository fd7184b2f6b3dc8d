// Checks that a batch is large enough to train batch normalisation.
#include "dp/error.h"
#include "engine/parallel/data_parallel_state.h"

namespace dp {

void DataParallel::State::require_two_values(std::int64_t rows, std::int64_t global_rows, int micro_batches) const {
  const engine::Norm* const norm = norms.of_one_cell();
  if (norm == nullptr) return;
  const bool sync = options.batch_norm == BatchNormMode::sync, ranks = options.process_group != nullptr;
  bool single = sync && ranks && global_rows == 1;  // a micro-batch's rows on other ranks are unknown here
  const int parts = sync || ranks ? 1 : shards();
  for (int micro = 0; micro < micro_batches && !(sync && ranks); ++micro) {
    const std::int64_t own = engine::shard_of(rows, micro, micro_batches, Split::balanced).size();
    for (int part = 0; part < parts; ++part)
      single = single || engine::shard_of(own, part, parts, options.split).size() == 1;
  }
  if (!single) return;
  const std::string what =
      "batch normalisation '" + norm->name + "' would have one value a channel: its images are 1x1, and ";
  const std::string drop = "leave out an epoch's short last batch (--drop-last)";
  throw Error(ErrorCode::usage,
              what + (sync ? "a batch or micro-batch has one of them. Training needs two: take a larger batch or fewer "
                             "micro-batches, or " +
                                 drop
                           : "a shard has one of them. Training needs two: take a larger batch or fewer replicas, "
                             "micro-batches or logical shards, " +
                                 drop + ", or normalise over the whole batch (--bn sync)"));
}

}  // namespace dp
