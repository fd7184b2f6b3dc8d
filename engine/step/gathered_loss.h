// The loss of nn.DataParallel: the master gathers the logits of all replicas, computes the loss of the whole
// micro-batch, and scatters the gradient of the logits.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "dp/loader.h"
#include "engine/step/model_setup.h"

namespace dp::engine {

class Worker;

// One worker's part of it.
class GatheredLoss {
 public:
  // `worker` must outlive this object.
  GatheredLoss(Worker& worker, const ModelSetup& setup);

  // Bytes of what reserve() allocates.
  struct Sizes {
    std::size_t logits = 0, labels = 0;  // and as much as the logits for their gradient
    std::size_t total() const { return 2 * logits + labels; }
  };
  static Sizes sizes(const ModelSetup& setup, std::int64_t rows);
  static std::unique_ptr<kernels::Op> make_op(const ModelSetup& setup, kernels::Context& context, std::int64_t rows);
  static std::size_t workspace_of(const kernels::Op& op) { return std::max(op.workspace_bytes(), std::size_t{1}); }

  // Allocates what micro-batches of `rows` rows need. Only for the master.
  void reserve(std::int64_t rows);
  void reserve_op(std::int64_t rows) { op(rows); }

  // Each runs on every worker, and enqueues. `rows`: of the whole micro-batch, in this process.
  void upload_labels(const Batch& batch, kernels::Range rows);
  void gather_logits(std::int64_t rows);
  void run(std::int64_t rows);

  // On the master, of several replicas: (rows, classes) of the latest gather_logits(). Readers share ownership.
  const std::shared_ptr<kernels::Buffer>& logits() const { return logits_; }

 private:
  kernels::Op& op(std::int64_t rows);

  Worker& worker_;
  const ModelSetup& setup_;
  std::vector<std::size_t> part_bytes_;  // scratch memory: bytes per rank
  // Used on the master only.
  std::shared_ptr<kernels::Buffer> logits_, grad_;
  std::unique_ptr<kernels::Buffer> labels_, workspace_;
  const void* current_labels_ = nullptr;                                    // of the current micro-batch
  std::vector<std::pair<std::int64_t, std::unique_ptr<kernels::Op>>> ops_;  // by rows
};

}  // namespace dp::engine
