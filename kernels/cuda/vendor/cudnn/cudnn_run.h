// Runs cuDNN plans.
#pragma once

#include <array>

#include "kernels/cuda/vendor/cudnn/cudnn_plan.h"

namespace dp::kernels::cuda {

// The pointers of one run: the tensors of the graph (null for absent ones) and the workspace.
class CudnnPointers {
 public:
  CudnnPointers(std::initializer_list<std::pair<CudnnTensorId, void*>> tensors, void* workspace);
  void* workspace() const { return pointers_[0]; }
  void* operator[](std::int64_t id) const { return pointers_[static_cast<std::size_t>(id)]; }
  bool operator==(const CudnnPointers&) const = default;

 private:
  std::array<void*, kCudnnBetween> pointers_{};  // indexed by id; 0: the workspace
};

// A plan that runs as part of the op `op`. `candidate` is the candidate's name.
class CudnnRun {
 public:
  CudnnRun(const char* op, std::string candidate, CudnnPlan plan, std::shared_ptr<Libraries> libraries);

  const std::string& candidate() const { return candidate_; }
  std::size_t workspace_bytes() const { return plan_.workspace_bytes(); }
  // Allocates nothing if the pointers are among the last four sets. The workspace must be aligned to kLibraryAlignment
  // bytes. Error(device) names the op, the candidate and the device.
  void enqueue(cudaStream_t stream, const CudnnPointers& pointers);
  // Error(device) if the pointer lacks the alignment stated in the graph.
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
  // Creating a pack allocates host memory, so the last few are cached. Steps repeat the same pointers.
  std::array<Pack, 4> packs_;
  std::size_t next_ = 0;
};

}  // namespace dp::kernels::cuda
