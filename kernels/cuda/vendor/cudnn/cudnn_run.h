// Runs of a plan of cuDNN's.
#pragma once

#include <array>

#include "kernels/cuda/vendor/cudnn/cudnn_plan.h"

namespace dp::kernels::cuda {

// The pointers of one run: of the tensors of a graph, null for those that it does not have, and the workspace.
class CudnnPointers {
 public:
  CudnnPointers(std::initializer_list<std::pair<CudnnTensorId, void*>> tensors, void* workspace);
  void* workspace() const { return pointers_[0]; }
  void* operator[](std::int64_t id) const { return pointers_[static_cast<std::size_t>(id)]; }
  bool operator==(const CudnnPointers&) const = default;

 private:
  std::array<void*, kCudnnBetween> pointers_{};  // by their ids; 0: the workspace
};

// One plan, run as a part of the op `op` by the way `way`.
class CudnnRun {
 public:
  CudnnRun(const char* op, std::string candidate, CudnnPlan plan, std::shared_ptr<Libraries> libraries);

  const std::string& candidate() const { return candidate_; }
  std::size_t workspace_bytes() const { return plan_.workspace_bytes(); }
  // Allocates nothing for pointers that it was called with lately. The workspace lies on a multiple of kLibraryAlignment. An Error says
  // which op failed where.
  void enqueue(cudaStream_t stream, const CudnnPointers& pointers);
  // An Error where a tensor does not lie as its graph says.
  void check_alignment(const TensorDesc& tensor, const void* pointer) const;

 private:
  CudnnBackendDescriptor pack_of(const CudnnPointers& pointers);
  [[noreturn]] void fail(const std::string& why) const;
  void expect_run(CudnnStatus status) const;

  struct Pack {
    std::optional<CudnnPointers> pointers;
    CudnnDescriptor descriptor;
  };

  const char* op_;
  std::string candidate_;
  std::shared_ptr<Libraries> libraries_;
  const CudnnApi& api_;
  CudnnPlan plan_;
  // Making one asks the host's allocator, so the last few are kept: a step comes with the same pointers as the one before.
  std::array<Pack, 4> packs_;
  std::size_t next_ = 0;
};

}  // namespace dp::kernels::cuda
