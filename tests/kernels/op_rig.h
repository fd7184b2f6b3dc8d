// Runs single ops on a device for the tests. Whatever an op is to write (its outputs, its workspace) is filled with NaN before,
// and guarded by a fence of bytes behind it.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/host_tensor.h"
#include "support/tested_kinds.h"

namespace dp::test {

// Device memory and how it is laid out.
struct DeviceTensor {
  kernels::TensorDesc desc;
  std::shared_ptr<kernels::Buffer> memory;
  void* data() const { return memory->data(); }
};

class OpRig {
 public:
  // activations: as kernels::ContextOptions has them.
  explicit OpRig(DeviceKind kind, int threads = 1, std::optional<DType> activations = {});

  kernels::Context& context() { return *context_; }
  DeviceKind kind() const { return kind_; }

  // What a descriptor says of an activation or the weights of a layer: any layout, or this one.
  kernels::TensorDesc desc(const Shape& shape, const kernels::Layout& layout = {}) const;
  kernels::Layout plain(const Shape& shape) const;
  // Of a tensor of the compute type.
  kernels::TensorDesc full(const Shape& shape, const kernels::Layout& layout = {}) const;
  kernels::TensorDesc plain_full(const Shape& shape) const;
  // One that the device likes for activations of (N,C,H,W): what it chooses for the output of a convolution.
  kernels::Layout preferred(const Shape& shape);

  // Through Reorder from row-major into desc's layout, which must be resolved.
  DeviceTensor upload(const HostTensor& tensor, const kernels::TensorDesc& desc);
  // Back through Reorder. Checks that nothing was written behind the tensor and that the layout's padding is zero.
  HostTensor download(const DeviceTensor& tensor);
  HostTensor download_raw(const DeviceTensor& tensor);  // row-major already, of the compute type
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

}  // namespace dp::test
