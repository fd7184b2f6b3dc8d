// What the stand-in for cuDNN demands of a descriptor before it takes it, and what it understands of it.
#include <bit>
#include <numeric>

#include "simt/cudnn/cudnn_state.h"
#include "simt/runtime/devices.h"
#include "simt/runtime/errors.h"

namespace dp::simt {
namespace {

using A = CudnnAttribute;
using Status = CudnnStatus;

Status wrong(const std::string& what) {
  report("cuDNN: " + what);
  return Status::bad_param;
}

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

CudnnTensor tensor_of(const CudnnObject& object) {
  return {object.value<std::int64_t>(A::tensor_id),
          object.value<std::int64_t>(A::tensor_alignment),
          object.value<CudnnType>(A::tensor_type),
          object.values<std::int64_t>(A::tensor_dimensions),
          object.values<std::int64_t>(A::tensor_strides),
          object.attributes.count(A::tensor_is_virtual) > 0 && object.value<bool>(A::tensor_is_virtual)};
}

const CudnnObject* part_of(const CudnnObject& object, A name) {
  return find(object.value<CudnnBackendDescriptor>(name));
}

struct Names {
  A convolution, x, w, y, alpha, beta;
};
Names names_of(CudnnKind kind) {
  if (kind == CudnnKind::operation_forward)
    return {A::forward_convolution, A::forward_x, A::forward_w, A::forward_y, A::forward_alpha, A::forward_beta};
  if (kind == CudnnKind::operation_backward_data)
    return {A::data_convolution, A::data_dx, A::data_w, A::data_dy, A::data_alpha, A::data_beta};
  return {A::filter_convolution, A::filter_x, A::filter_dw, A::filter_dy, A::filter_alpha, A::filter_beta};
}

Status check_shapes(const CudnnProgram& program) {
  const auto &x = program.x.dimensions, &w = program.w.dimensions, &y = program.y.dimensions;
  if (x.size() != 4 || w.size() != 4 || y.size() != 4) return wrong("a convolution of tensors without four dimensions");
  if (x[0] != y[0] || x[1] != w[1] || y[1] != w[0]) return wrong("a convolution of shapes that do not fit");
  for (std::size_t i = 0; i < 2; ++i)
    if (y[i + 2] != (x[i + 2] + 2 * program.padding[i] - w[i + 2]) / program.stride[i] + 1)
      return wrong("a convolution whose window gives another output");
  return Status::success;
}

// Both layouts have channels or columns side by side; cuDNN's engines know no others.
bool is_packed(const CudnnTensor& tensor) {
  const auto& d = tensor.dimensions;
  const std::vector<std::int64_t> last{d[1] * d[2] * d[3], 1, d[1] * d[3], d[1]},
      first{d[1] * d[2] * d[3], d[2] * d[3], d[3], 1};
  return tensor.strides == last || tensor.strides == first;
}

Status understand_convolution(const CudnnObject& operation, CudnnProgram& program) {
  const Names names = names_of(operation.kind);
  const CudnnObject *const convolution = part_of(operation, names.convolution), *const x = part_of(operation, names.x),
                           *const w = part_of(operation, names.w), *const y = part_of(operation, names.y);
  if (convolution == nullptr || x == nullptr || w == nullptr || y == nullptr) return Status::bad_param;
  if (operation.value<float>(names.alpha) != 1 || operation.value<float>(names.beta) != 0) return Status::not_supported;
  program.direction = operation.kind == CudnnKind::operation_forward         ? CudnnDirection::forward
                      : operation.kind == CudnnKind::operation_backward_data ? CudnnDirection::backward_data
                                                                             : CudnnDirection::backward_filter;
  program.x = tensor_of(*x), program.w = tensor_of(*w), program.y = tensor_of(*y);
  program.padding = convolution->values<std::int64_t>(A::convolution_pre_paddings);
  program.stride = convolution->values<std::int64_t>(A::convolution_strides);
  if (const Status status = check_shapes(program); status != Status::success) return status;
  for (const CudnnTensor* const tensor : {&program.x, &program.w, &program.y})
    if (!is_packed(*tensor)) return Status::not_supported;
  const bool filter = program.direction == CudnnDirection::backward_filter;
  if (program.x.type != (filter ? program.y : program.w).type) return Status::not_supported;
  if (program.x.is_virtual || program.w.is_virtual) return wrong("a convolution of what no operation computes");
  return Status::success;
}

// program.y is what comes out of the operations before it.
Status understand_pointwise(const CudnnObject& operation, CudnnProgram& program) {
  const CudnnObject *const what = part_of(operation, A::operation_pointwise_descriptor),
                           *const x = part_of(operation, A::operation_pointwise_x),
                           *const y = part_of(operation, A::operation_pointwise_y);
  if (what == nullptr || x == nullptr || y == nullptr) return Status::bad_param;
  const CudnnTensor from = tensor_of(*x), to = tensor_of(*y);
  if (!program.y.is_virtual) return wrong("an operation between operations writes a tensor that is not virtual");
  if (from.id != program.y.id) return wrong("a pointwise operation does not read what the one before it gives");
  if (from.dimensions != to.dimensions) return wrong("a pointwise operation changes the shape");
  if (to.id == from.id) return wrong("an operation's tensors have one id");
  if (what->value<CudnnType>(A::pointwise_math_precision) != CudnnType::f32) return Status::not_supported;
  const auto mode = what->value<CudnnPointwise>(A::pointwise_mode);
  const bool binary = operation.attributes.count(A::operation_pointwise_b) > 0;
  if (binary != (mode == CudnnPointwise::add)) return wrong("a pointwise operation with other inputs than it has");
  if (binary) {
    const CudnnObject* const b = part_of(operation, A::operation_pointwise_b);
    if (b == nullptr) return Status::bad_param;
    program.bias = tensor_of(*b);
    if (program.bias->dimensions != std::vector<std::int64_t>{1, to.dimensions[1], 1, 1})
      return wrong("a bias of another shape");
    if (program.relu) return Status::not_supported;
  }
  program.relu = program.relu || mode == CudnnPointwise::relu;
  program.y = to;
  return Status::success;
}

Status understand_graph(CudnnObject& graph) {
  const CudnnHandle handle = graph.value<CudnnHandle>(A::graph_handle);
  if (handle == nullptr || handle->destroyed) return wrong("a graph with a handle that is gone");
  auto program = std::make_shared<CudnnProgram>();
  bool first = true;
  for (const CudnnBackendDescriptor descriptor : graph.values<CudnnBackendDescriptor>(A::graph_operations)) {
    const CudnnObject* const operation = find(descriptor);
    if (operation == nullptr) return Status::bad_param;
    const bool pointwise = operation->kind == CudnnKind::operation_pointwise;
    if (pointwise == first) return Status::not_supported;
    if (pointwise && program->direction != CudnnDirection::forward) return Status::not_supported;
    const Status status =
        pointwise ? understand_pointwise(*operation, *program) : understand_convolution(*operation, *program);
    if (status != Status::success) return status;
    first = false;
  }
  if (program->y.is_virtual) return wrong("a graph whose result is virtual");
  std::set<std::int64_t> ids;
  for (const CudnnTensor* const tensor : program->in_memory())
    if (!ids.insert(tensor->id).second) return wrong("two tensors of a graph have one id");
  graph.program = std::move(program);
  return Status::success;
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

std::vector<const CudnnTensor*> CudnnProgram::in_memory() const {
  std::vector<const CudnnTensor*> tensors{&x, &w, &y};
  if (bias) tensors.push_back(&*bias);
  return tensors;
}

Status finalize(CudnnObject& object) {
  const auto take_program = [&](A name) {
    const CudnnObject* const from = part_of(object, name);
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
