// The options of a DataParallel with every automatic choice made, and what follows from them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "dp/model.h"
#include "dp/parallel_options.h"

namespace dp {

struct ResolvedOptions {
  DataParallelOptions options;
  std::string communicator_reason;  // why options.comm was chosen
  std::string threads_notice;       // which limit reduces the threads of the replicas, if one does
};
// Resolves every automatic choice except graphs. Error(usage) for impossible options.
ResolvedOptions resolved(DataParallelOptions options);
int ranks_of(const DataParallelOptions& options);                         // replicas of all ranks
int shards_of(const DataParallelOptions& options);                        // of a batch, over all replicas
std::optional<DType> activations_of(const DataParallelOptions& options);  // empty without mixed precision
std::string communicator_name(Comm comm);                                 // the backends' name for it
// Sizes of buckets and arenas are multiples of this number of elements. With nccl, all ranks' slices of a bucket are
// then equally large, as NCCL's reduce-scatter and all-gather require.
std::int64_t bucket_granularity(const DataParallelOptions& options);
bool vectors_first(const DataParallelOptions& options);  // see engine::ParameterTable

}  // namespace dp
