// Runs single ops on a device for the tests. Outputs and workspace are filled with NaN before the op, and guarded by a
// fence of bytes at the end.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/device/backend.h"
#include "kernels/host_tensor.h"
#include "support/tested_kinds.h"

namespace dp::test {

// Device memory and its descriptor.
struct DeviceTensor {
  kernels::TensorDesc desc;
  std::shared_ptr<kernels::Buffer> memory;
  void* data() const { return memory->data(); }
};

class OpRig {
 public:
  // activations: as in kernels::ContextOptions.
  explicit OpRig(DeviceKind kind, int threads = 1, std::optional<DType> activations = {});

  kernels::Context& context() { return *context_; }
  DeviceKind kind() const { return kind_; }

  // Descriptor of an activation or of a layer's weights, in any layout or in the given one.
  kernels::TensorDesc desc(const Shape& shape, const kernels::Layout& layout = {}) const;
  kernels::Layout plain(const Shape& shape) const;
  // Descriptor of a tensor of the compute type.
  kernels::TensorDesc full(const Shape& shape, const kernels::Layout& layout = {}) const;
  kernels::TensorDesc plain_full(const Shape& shape) const;
  // The device's preferred layout for activations (N,C,H,W): the output layout that it chooses for a convolution.
  kernels::Layout preferred(const Shape& shape);

  // Reorders from row-major to the layout of `desc`, which must be resolved.
  DeviceTensor upload(const HostTensor& tensor, const kernels::TensorDesc& desc);
  // Reorders back. Checks that nothing was written after the tensor and that the layout's padding is zero.
  HostTensor download(const DeviceTensor& tensor);
  HostTensor download_raw(const DeviceTensor& tensor);  // the tensor is row-major, of the compute type
  // The same elements in another layout.
  DeviceTensor relaid(const DeviceTensor& tensor, const kernels::TensorDesc& desc);
  DeviceTensor poisoned(const kernels::TensorDesc& desc, unsigned char poison = 0xFF);  // 0xFF: NaN

  // Plain bytes: samples, labels, StepInputs.
  std::unique_ptr<kernels::Buffer> upload_bytes(const void* data, std::size_t bytes);
  void download_bytes(void* data, const kernels::Buffer& memory, std::size_t bytes);

  void run(kernels::Op& op, std::span<void* const> args);
  void run(kernels::Op& op, std::initializer_list<void*> args) { run(op, std::span(args.begin(), args.size())); }

 private:
  void copy(void* dst, const void* src, std::size_t bytes);
  std::unique_ptr<kernels::Buffer> fenced(std::size_t bytes, unsigned char fill);
  void check_fence(const kernels::Buffer& memory, std::size_t bytes, const char* what);
  void check_padding(const DeviceTensor& tensor, const HostTensor& values);

  DeviceKind kind_;
  std::unique_ptr<kernels::Context> context_;
  std::unique_ptr<kernels::Stream> stream_;  // after context_: destroyed first
};

// Row-major, of the compute type.
inline DeviceTensor upload_plain(OpRig& rig, const HostTensor& tensor) {
  return rig.upload(tensor, rig.plain_full(tensor.shape));
}

inline void* data_or_null(const std::optional<DeviceTensor>& tensor) { return tensor ? tensor->data() : nullptr; }

}  // namespace dp::test
