// What the CUDA ops share, and their makers: one overload of make() per descriptor, so that a missing operation does not
// compile.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>

#include "kernels/backend.h"
#include "kernels/cuda/gemm/gemm_choice.h"
#include "kernels/cuda/runtime/tensor_layout.h"

namespace dp::kernels::cuda {

class Libraries;

struct CudaOpOptions {
  int multiprocessors = 1;                 // of the device
  int compute_capability = 0;              // of the device: 90 for 9.0
  std::size_t shared_memory = 0;           // of a block of the device at most, bytes
  bool deterministic = false;              // our own kernels always are; for library ops
  bool tf32 = false;                       // library ops may round what they multiply to TF32
  bool fast_convolutions = false;          // library ops may be Winograd's
  std::optional<GemmChoice> gemm{};        // for ops that are products; nothing: by its shape
  std::shared_ptr<Libraries> libraries{};  // of the context; null: own kernels only
};

class CudaOp : public Op {
 public:
  void run(Stream& stream, std::span<void* const> args, void* workspace) final;  // in stream.cpp
  const std::vector<TensorDesc>& tensors() const override { return tensors_; }
  std::string implementation() const override { return "own"; }
  // Of CudaOpOptions::gemm, that may make it faster on some device.
  virtual std::vector<GemmChoice> alternatives() const { return {}; }
  virtual bool rounds_to_tf32() const { return false; }
  // Whether it runs kernels of a library, which are loaded when it is first run.
  virtual bool uses_libraries() const { return false; }
  // Loads what an op without libraries launches, on the current device and for whatever pointers. In stream.cpp.
  void load_kernels();
  // As run(), on a stream of the current device that belongs to nobody.
  void run_on(cudaStream_t stream, std::span<void* const> args, void* workspace) { enqueue(stream, args, workspace); }

 protected:
  // Launches on `stream`; allocates nothing and waits for nothing. `args` and `workspace` as Op::run has them. Under KernelLoading the
  // pointers are no memory.
  virtual void enqueue(cudaStream_t stream, std::span<void* const> args, void* workspace) = 0;

  std::vector<TensorDesc> tensors_;  // set by the constructor
};

inline const float* in(void* arg) { return static_cast<const float*>(arg); }
inline float* out(void* arg) { return static_cast<float*>(arg); }

// The descriptor's shapes have been checked (kernels/check_shapes.h).
std::unique_ptr<CudaOp> make(const Conv2dForward& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const Conv2dBackwardData& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const Conv2dBackwardWeights& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const LinearForward& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const LinearBackwardData& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const LinearBackwardWeights& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const ReluForward& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const ReluBackward& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const MaxPool2dForward& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const MaxPool2dBackward& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const AvgPool2dForward& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const AvgPool2dBackward& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const AddForward& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const BatchNormMoments& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const BatchNormMerge& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const BatchNormTrack& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const BatchNormRunning& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const BatchNormForward& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const BatchNormBackwardSums& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const BatchNormBackward& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const NormConv2dForward& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const NormConv2dBackwardData& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const NormConv2dBackwardWeights& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const LinearDropoutForward& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const Conv2dPoolForward& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const Conv2dReluBackwardData& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const LinearPoolBackwardData& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const LinearReluBackward& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const LinearLoss& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const DropoutApply& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const SoftmaxCrossEntropy& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const Reorder& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const Fill& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const Accumulate& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const MovingAverage& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const SgdUpdate& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const GradNormPartials& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const GradNormFinish& desc, const CudaOpOptions& options);
std::unique_ptr<CudaOp> make(const GatherImages& desc, const CudaOpOptions& options);

}  // namespace dp::kernels::cuda
