// Base class of the CUDA ops, and the memory orders of their tensors.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>

#include "kernels/device/backend.h"
#include "kernels/layout.h"
#include "kernels/linear/cuda_gemm_choice.h"

namespace dp::kernels::cuda {

// Memory orders of the CUDA backend: row-major, or channels last. Channels last means N,H,W,C for activations and
// O,kH,kW,I for convolution weights. It means O,H,W,C for the weights of a linear layer that reads channels-last
// images.

// A tensor as `outer` blocks of channels x pixels. Pixels are contiguous in row-major order, channels in channels-last
// order.
struct Order {
  std::int64_t outer = 1, channels = 1, pixels = 1;
  bool channels_last = false;
};

Layout plain(const Shape& shape, DType type);
// For rank 4. Returns plain() for other ranks, and for one channel or one pixel, as the order is then the same.
Layout channels_last(const Shape& shape, DType type);
// The order of a linear layer's weights (O, C*H*W) when its input (N,C,H,W) is stored channels last: (O, H*W*C).
Layout linear_channels_last(const Shape& weights, const Shape& input, DType type);
// The tensor's memory order for another element type. Its layout must be resolved.
Layout with_type(const TensorDesc& tensor, DType type);

// Error(usage) for another backend's layout.
Order order_of(const TensorDesc& tensor);
bool is_channels_last(const TensorDesc& tensor);

// The tensor; a layout any() becomes channels last, or plain.
TensorDesc resolved_channels_last(const TensorDesc& tensor);
TensorDesc resolved_plain(const TensorDesc& tensor);

class Libraries;

struct CudaOpOptions {
  int multiprocessors = 1;                 // of the device
  int compute_capability = 0;              // 90 for 9.0; at most what the code was compiled for
  bool wgmma = false;                      // the device has compute capability 9.0, the code is for sm_90a
  std::size_t shared_memory = 0;           // bytes per block, the device's opt-in maximum
  bool deterministic = false;              // for library ops; our own kernels always are
  bool tf32 = false;                       // library ops may round their inputs to TF32
  bool fast_convolutions = false;          // library ops may use Winograd or FFT
  std::optional<GemmChoice> gemm{};        // for matrix products; nullopt: chosen by shape
  std::shared_ptr<Libraries> libraries{};  // of the context; null: own kernels only
};

class CudaOp : public Op {
 public:
  void run(Stream& stream, std::span<void* const> args, void* workspace) final;  // in stream.cpp
  const std::vector<TensorDesc>& tensors() const override { return tensors_; }
  std::string implementation() const override { return "own"; }
  // Other values of CudaOpOptions::gemm. Each may be faster on some device.
  virtual std::vector<GemmChoice> alternatives() const { return {}; }
  virtual bool rounds_to_tf32() const { return false; }
  // Whether the op runs library kernels. Libraries load their kernels at the first run.
  virtual bool uses_libraries() const { return false; }
  // Loads the kernels that the op may launch, for any pointers, on the current device. Only for ops that do not use
  // libraries. In stream.cpp.
  void load_kernels();
  // Enqueues on a stream of the current device that no CudaStream owns. The work is not timed.
  void run_on(cudaStream_t stream, std::span<void* const> args, void* workspace) { enqueue(stream, args, workspace); }

 protected:
  // Launches on `stream`. Must not allocate or wait. `args` and `workspace` are those of Op::run. Under KernelLoading
  // the pointers do not point to memory.
  virtual void enqueue(cudaStream_t stream, std::span<void* const> args, void* workspace) = 0;

  std::vector<TensorDesc> tensors_;  // set by the constructor
};

inline const float* in(void* arg) { return static_cast<const float*>(arg); }
inline float* out(void* arg) { return static_cast<float*>(arg); }

}  // namespace dp::kernels::cuda
