// The simulated cuDNN's checks when a descriptor is finalized.
#include <bit>

#include "simulated_cuda/cudnn/cudnn_state.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"

namespace dp::simt {
namespace {

using A = CudnnAttribute;
using Status = CudnnStatus;

Status wrong(const std::string& what) { return wrong_parameter(what); }

Status check_tensor(const CudnnObject& object) {
  const auto dimensions = object.values<std::int64_t>(A::tensor_dimensions);
  const auto strides = object.values<std::int64_t>(A::tensor_strides);
  const auto alignment = object.value<std::int64_t>(A::tensor_alignment);
  const auto type = object.value<CudnnType>(A::tensor_type);
  if (dimensions.size() != strides.size() || dimensions.size() < 3)
    return wrong("a tensor with other strides than dimensions");
  for (std::size_t i = 0; i < dimensions.size(); ++i)
    if (dimensions[i] < 1 || strides[i] < 1) return wrong("a tensor with a dimension or stride of nothing");
  if (alignment < 1 || !std::has_single_bit(static_cast<std::uint64_t>(alignment)) ||
      alignment % static_cast<std::int64_t>(bytes_of(type)) != 0)
    return wrong("a tensor's alignment is " + std::to_string(alignment));
  return Status::success;
}

Status check_convolution(const CudnnObject& object) {
  if (object.value<std::int64_t>(A::convolution_spatial_dims) != 2) return Status::not_supported;
  for (const A name :
       {A::convolution_dilations, A::convolution_strides, A::convolution_pre_paddings, A::convolution_post_paddings})
    if (object.values<std::int64_t>(name).size() != 2) return wrong("a convolution of two dimensions has others");
  for (const std::int64_t dilation : object.values<std::int64_t>(A::convolution_dilations))
    if (dilation != 1) return Status::not_supported;
  if (object.values<std::int64_t>(A::convolution_pre_paddings) !=
      object.values<std::int64_t>(A::convolution_post_paddings))
    return Status::not_supported;
  return object.value<CudnnType>(A::convolution_compute_type) == CudnnType::f32 ? Status::success
                                                                                : Status::not_supported;
}

Status check_pack(const CudnnObject& pack) {
  const auto ids = pack.values<std::int64_t>(A::variant_ids);
  const auto pointers = pack.values<void*>(A::variant_pointers);
  if (ids.size() != pointers.size()) return wrong("a variant pack with other pointers than ids");
  if (std::set<std::int64_t>(ids.begin(), ids.end()).size() != ids.size())
    return wrong("a variant pack with an id twice");
  return Status::success;
}

}  // namespace

std::size_t bytes_of(CudnnType type) { return type == CudnnType::f32 ? 4 : type == CudnnType::f64 ? 8 : 2; }

std::size_t workspace_of(CudnnEngine engine) {
  return engine == CudnnEngine::hungry ? std::size_t{1} << 30 : engine == CudnnEngine::needs_workspace ? 1236 : 0;
}

std::size_t CudnnTensor::bytes() const {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < dimensions.size(); ++i) last += (dimensions[i] - 1) * strides[i];
  return static_cast<std::size_t>(last + 1) * bytes_of(type);
}

Status wrong_parameter(const std::string& what) {
  report("cuDNN: " + what);
  return Status::bad_param;
}

Status finalize(CudnnObject& object) {
  const auto take_program = [&](A name) {
    const CudnnObject* const from = find(object.value<CudnnBackendDescriptor>(name));
    if (from == nullptr) return Status::bad_param;
    object.program = from->program, object.engine = from->engine;
    return Status::success;
  };
  switch (object.kind) {
    case CudnnKind::tensor: return check_tensor(object);
    case CudnnKind::convolution: return check_convolution(object);
    case CudnnKind::operation_graph: return understand_graph(object);
    case CudnnKind::heuristics: return take_program(A::heuristics_graph);
    case CudnnKind::plan: {
      must_be_current(object.value<CudnnHandle>(A::plan_handle)->device, "cuDNN: a handle", "makes a plan");
      const Status status = take_program(A::plan_config);
      return status == Status::success && object.engine == CudnnEngine::refuses ? Status::not_supported : status;
    }
    case CudnnKind::variant_pack: return check_pack(object);
    default: return Status::success;
  }
}

bool check_memory(const CudnnTensor& tensor, const void* pointer, int device) {
  const std::string name = "tensor " + std::to_string(tensor.id);
  Allocation allocation;
  if (owner_of(pointer) != device || !simt::device(device).memory.find(pointer, allocation)) {
    report("cuDNN: " + name + " is no memory of " + device_name(device));
    return false;
  }
  if (!allocation.holds(pointer, tensor.bytes())) report("cuDNN: " + name + " is longer than its memory");
  if (reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(tensor.alignment) != 0)
    report("cuDNN: " + name + " does not lie on a multiple of " + std::to_string(tensor.alignment) + " bytes");
  return true;
}

}  // namespace dp::simt
