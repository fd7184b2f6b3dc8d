#include "kernels/cuda/vendor/cudnn/cudnn_run.h"

#include "dp/error.h"
#include "kernels/cuda/runtime/check.h"

namespace dp::kernels::cuda {

CudnnPointers::CudnnPointers(std::initializer_list<std::pair<CudnnTensorId, void*>> tensors, void* workspace) {
  pointers_[0] = workspace;
  for (const auto& [id, pointer] : tensors) pointers_[static_cast<std::size_t>(id)] = pointer;
}

CudnnRun::CudnnRun(const char* op, std::string candidate, CudnnPlan plan, std::shared_ptr<Libraries> libraries)
    : op_(op),
      candidate_(std::move(candidate)),
      libraries_(std::move(libraries)),
      api_(*cudnn().api),
      plan_(std::move(plan)) {}

void CudnnRun::enqueue(cudaStream_t stream, const CudnnPointers& pointers) {
  expect_run(libraries_->use_stream(stream));
  try {
    expect_run(api_.execute(libraries_->cudnn_handle(), plan_.get(), pack_of(pointers)));
  } catch (const CudnnRefusal& refusal) {
    fail(refusal.what());
  }
}

CudnnBackendDescriptor CudnnRun::pack_of(const CudnnPointers& pointers) {
  for (const Pack& pack : packs_)
    if (pack.pointers == pointers) return pack.descriptor.get();
  std::vector<std::int64_t> ids;
  std::vector<void*> data;
  for (std::int64_t id = kCudnnX; id < kCudnnBetween; ++id)
    if (void* const pointer = pointers[id]; pointer != nullptr) ids.push_back(id), data.push_back(pointer);
  CudnnDescriptor made(api_, CudnnKind::variant_pack);
  made.set<std::int64_t>(CudnnAttribute::variant_ids, std::span<const std::int64_t>(ids));
  made.set<void*>(CudnnAttribute::variant_pointers, std::span<void* const>(data));
  made.set(CudnnAttribute::variant_workspace, pointers.workspace());
  made.finalize();
  Pack& pack = packs_[next_++ % packs_.size()];
  pack = {pointers, std::move(made)};
  return pack.descriptor.get();
}

void CudnnRun::fail(const std::string& why) const {
  cudaGetLastError();
  throw Error(ErrorCode::device, std::string("cuDNN failed in ") + op_ + " (" + candidate_ + ") on " +
                                     current_device() + ": " + why + "; set DP_CUDNN_LIBRARY=none to disable cuDNN");
}

void CudnnRun::expect_run(CudnnStatus status) const {
  if (status != CudnnStatus::success) fail(describe(api_, status));
}

void CudnnRun::check_alignment(const TensorDesc& tensor, const void* pointer) const {
  const auto alignment = static_cast<std::uintptr_t>(sample_alignment(tensor));
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0)
    fail("a tensor is not aligned to " + std::to_string(alignment) + " bytes");
}

}  // namespace dp::kernels::cuda
