// The simulated cuDNN's graph parser: which graphs it supports, and their constraints.
#include <algorithm>

#include "simulated_cuda/cudnn/cudnn_state.h"

namespace dp::simt {
namespace {

using A = CudnnAttribute;
using K = CudnnKind;
using Status = CudnnStatus;

Status wrong(const std::string& what) { return wrong_parameter(what); }

CudnnTensor tensor_of(const CudnnObject& object) {
  return {object.value<std::int64_t>(A::tensor_id),
          object.value<std::int64_t>(A::tensor_alignment),
          object.value<CudnnType>(A::tensor_type),
          object.values<std::int64_t>(A::tensor_dimensions),
          object.values<std::int64_t>(A::tensor_strides),
          object.attributes.count(A::tensor_is_virtual) > 0 && object.value<bool>(A::tensor_is_virtual)};
}

bool same(const CudnnTensor& a, const CudnnTensor& b) {
  return a.alignment == b.alignment && a.type == b.type && a.dimensions == b.dimensions && a.strides == b.strides &&
         a.is_virtual == b.is_virtual;
}

// Channels-last or channels-first without gaps. cuDNN's engines support no other layout.
bool is_packed(const CudnnTensor& tensor) {
  const auto& d = tensor.dimensions;
  const std::vector<std::int64_t> last{d[1] * d[2] * d[3], 1, d[1] * d[3], d[1]},
      first{d[1] * d[2] * d[3], d[2] * d[3], d[3], 1};
  return tensor.strides == last || tensor.strides == first;
}

bool is_per_channel(const CudnnTensor& numbers, const CudnnTensor& of) {
  return numbers.dimensions == std::vector<std::int64_t>{1, of.dimensions[1], 1, 1} && !numbers.is_virtual;
}

class Understanding {
 public:
  Status add(const CudnnObject& object) {
    CudnnOperation operation{.kind = object.kind};
    for (const auto& [name, value] : object.attributes) {
      if (value.type != CudnnAttributeType::descriptor) continue;
      const CudnnObject* const part = find(object.value<CudnnBackendDescriptor>(name));
      if (part == nullptr) return Status::bad_param;
      if (part->kind != K::tensor) continue;
      const CudnnTensor tensor = tensor_of(*part);
      if (tensor.dimensions.size() != 4) return wrong("an operation of tensors without four dimensions");
      const auto [place, is_new] = program_.tensors.emplace(tensor.id, tensor);
      if (!is_new && !same(place->second, tensor)) return wrong("two tensors of a graph have one id");
      operation.tensors[name] = tensor.id;
    }
    Status status = Status::success;
    if (is_convolution(object.kind))
      status = convolution(object, operation);
    else if (object.kind == K::operation_pointwise)
      status = pointwise(object, operation);
    else if (object.kind == K::operation_statistics)
      status = statistics(object, operation);
    else
      status = norm_backward(object, operation);
    if (status == Status::success) status = order(operation);
    program_.operations.push_back(std::move(operation));
    return status;
  }

  Status finish() {
    if (convolutions_ != 1) return Status::not_supported;
    for (const auto& [id, tensor] : program_.tensors)
      if (tensor.is_virtual && program_.written.count(id) == 0)
        return wrong("tensor " + std::to_string(id) + " is virtual, and no operation computes it");
    for (const std::int64_t id : program_.written)
      if (program_.tensors.at(id).is_virtual && read_.count(id) == 0) return wrong("a graph whose result is virtual");
    return Status::success;
  }

  CudnnProgram take() { return std::move(program_); }

 private:
  const CudnnTensor& tensor(const CudnnOperation& operation, A name) const {
    return program_.tensors.at(operation[name]);
  }

  // An operation reads tensors in memory or results of earlier operations. It must not write a tensor that was read or
  // written before.
  Status order(const CudnnOperation& operation) {
    const std::vector<A> results = written_by(operation);
    for (const auto& [name, id] : operation.tensors) {
      if (std::ranges::find(results, name) != results.end()) continue;
      read_.insert(id);
      if (program_.tensors.at(id).is_virtual && program_.written.count(id) == 0)
        return wrong("an operation reads what no operation before it computes");
    }
    for (const A name : results) {
      const std::int64_t id = operation[name];
      if (read_.count(id) > 0) return wrong("an operation writes a tensor that the graph reads before");
      if (!program_.written.insert(id).second) return wrong("two operations write one tensor");
    }
    return Status::success;
  }

  Status convolution(const CudnnObject& object, CudnnOperation& operation) {
    const CudnnConvolutionNames names = names_of(object.kind);
    const CudnnObject* const what = find(object.value<CudnnBackendDescriptor>(names.convolution));
    if (what == nullptr) return Status::bad_param;
    if (object.value<float>(names.alpha) != 1 || object.value<float>(names.beta) != 0) return Status::not_supported;
    operation.padding = what->values<std::int64_t>(A::convolution_pre_paddings);
    operation.stride = what->values<std::int64_t>(A::convolution_strides);
    ++convolutions_, program_.convolution = program_.operations.size();
    const CudnnTensor &x = tensor(operation, names.x), &w = tensor(operation, names.w), &y = tensor(operation, names.y);
    const auto &dx = x.dimensions, &dw = w.dimensions, &dy = y.dimensions;
    if (dx[0] != dy[0] || dx[1] != dw[1] || dy[1] != dw[0]) return wrong("a convolution of shapes that do not fit");
    for (std::size_t i = 0; i < 2; ++i)
      if (dy[i + 2] != (dx[i + 2] + 2 * operation.padding[i] - dw[i + 2]) / operation.stride[i] + 1)
        return wrong("a convolution whose window gives another output");
    for (const CudnnTensor* const part : {&x, &w, &y})
      if (!is_packed(*part)) return Status::not_supported;
    const bool filter = object.kind == K::operation_backward_filter, data = object.kind == K::operation_backward_data;
    if ((data ? y : x).type != (filter ? y : w).type) return Status::not_supported;
    return Status::success;
  }

  Status pointwise(const CudnnObject& object, CudnnOperation& operation) {
    const CudnnObject* const what = find(object.value<CudnnBackendDescriptor>(A::operation_pointwise_descriptor));
    if (what == nullptr) return Status::bad_param;
    if (what->value<CudnnType>(A::pointwise_math_precision) != CudnnType::f32) return Status::not_supported;
    operation.mode = what->value<CudnnPointwise>(A::pointwise_mode);
    if (what->attributes.contains(A::pointwise_nan)) operation.nan = what->value<CudnnNan>(A::pointwise_nan);
    if (object.attributes.count(A::operation_pointwise_alpha2) > 0)
      operation.factor = object.value<float>(A::operation_pointwise_alpha2);
    const bool backward = operation.mode == CudnnPointwise::relu_backward,
               binary = operation.mode == CudnnPointwise::add || operation.mode == CudnnPointwise::multiply;
    if (operation.has(A::operation_pointwise_b) != binary || operation.has(A::operation_pointwise_dy) != backward ||
        operation.has(A::operation_pointwise_dx) != backward || operation.has(A::operation_pointwise_y) == backward ||
        !operation.has(A::operation_pointwise_x))
      return wrong("a pointwise operation with other tensors than it has");
    if (operation.factor != 1 && operation.mode != CudnnPointwise::add) return Status::not_supported;
    const CudnnTensor &x = tensor(operation, A::operation_pointwise_x),
                      &y = tensor(operation, backward ? A::operation_pointwise_dx : A::operation_pointwise_y);
    if (x.dimensions != y.dimensions ||
        (backward && tensor(operation, A::operation_pointwise_dy).dimensions != y.dimensions))
      return wrong("a pointwise operation changes the shape");
    if (!binary) return Status::success;
    const CudnnTensor& b = tensor(operation, A::operation_pointwise_b);
    return b.dimensions == y.dimensions || is_per_channel(b, y) ? Status::success
                                                                : wrong("a pointwise operation's b of another shape");
  }

  Status statistics(const CudnnObject& object, const CudnnOperation& operation) {
    if (object.value<CudnnStatistics>(A::statistics_mode) != CudnnStatistics::sum_and_squares ||
        object.value<CudnnType>(A::statistics_math_precision) != CudnnType::f32)
      return Status::not_supported;
    for (const A name : {A::statistics_sum, A::statistics_squares}) {
      if (!is_per_channel(tensor(operation, name), tensor(operation, A::statistics_x)))
        return wrong("statistics of another shape");
      if (tensor(operation, name).type != CudnnType::f32) return Status::not_supported;
    }
    return Status::success;
  }

  Status norm_backward(const CudnnObject& object, const CudnnOperation& operation) {
    if (object.value<CudnnType>(A::norm_backward_math_precision) != CudnnType::f32) return Status::not_supported;
    const CudnnTensor& x = tensor(operation, A::norm_backward_x);
    if (tensor(operation, A::norm_backward_dy).dimensions != x.dimensions)
      return wrong("a gradient of another shape than what was normalised");
    for (const auto& [name, id] : operation.tensors) {
      if (name == A::norm_backward_x || name == A::norm_backward_dy) continue;
      if (!is_per_channel(program_.tensors.at(id), x))
        return wrong("numbers of a batch normalisation in another shape");
      if (program_.tensors.at(id).type != CudnnType::f32) return Status::not_supported;
    }
    return Status::success;
  }

  CudnnProgram program_;
  std::set<std::int64_t> read_;
  int convolutions_ = 0;
};

}  // namespace

bool is_convolution(K kind) {
  return kind == K::operation_forward || kind == K::operation_backward_data || kind == K::operation_backward_filter;
}

CudnnConvolutionNames names_of(K kind) {
  if (kind == K::operation_forward)
    return {A::forward_convolution, A::forward_x, A::forward_w, A::forward_y, A::forward_alpha, A::forward_beta};
  if (kind == K::operation_backward_data)
    return {A::data_convolution, A::data_dx, A::data_w, A::data_dy, A::data_alpha, A::data_beta};
  return {A::filter_convolution, A::filter_x, A::filter_dw, A::filter_dy, A::filter_alpha, A::filter_beta};
}

std::vector<A> written_by(const CudnnOperation& operation) {
  switch (operation.kind) {
    case K::operation_forward: return {A::forward_y};
    case K::operation_backward_data: return {A::data_dx};
    case K::operation_backward_filter: return {A::filter_dw};
    case K::operation_statistics: return {A::statistics_sum, A::statistics_squares};
    case K::operation_norm_backward:
      return {A::norm_backward_dscale, A::norm_backward_dbias, A::norm_backward_dy_factor, A::norm_backward_x_factor,
              A::norm_backward_constant};
    default:
      return {operation.mode == CudnnPointwise::relu_backward ? A::operation_pointwise_dx : A::operation_pointwise_y};
  }
}

CudnnDirection CudnnProgram::direction() const {
  const K kind = operations[convolution].kind;
  return kind == K::operation_forward         ? CudnnDirection::forward
         : kind == K::operation_backward_data ? CudnnDirection::backward_data
                                              : CudnnDirection::backward_filter;
}
const CudnnTensor& CudnnProgram::x() const {
  const CudnnOperation& own = operations[convolution];
  return tensors.at(own[names_of(own.kind).x]);
}
const CudnnTensor& CudnnProgram::w() const {
  const CudnnOperation& own = operations[convolution];
  return tensors.at(own[names_of(own.kind).w]);
}
const CudnnTensor& CudnnProgram::y() const {
  const CudnnOperation& own = operations[convolution];
  return tensors.at(own[names_of(own.kind).y]);
}

bool CudnnProgram::has(K kind) const {
  return std::ranges::any_of(operations, [&](const CudnnOperation& operation) { return operation.kind == kind; });
}

bool CudnnProgram::fuses_norm() const {
  return convolution > 0 || has(K::operation_statistics) ||
         (direction() == CudnnDirection::backward_data && operations.size() > 1);
}

std::vector<const CudnnTensor*> CudnnProgram::in_memory() const {
  std::vector<const CudnnTensor*> memory;
  for (const auto& [id, tensor] : tensors)
    if (!tensor.is_virtual) memory.push_back(&tensor);
  return memory;
}

bool fused_as_seen(const CudnnProgram& program) {
  if (program.w().type != CudnnType::f16) return false;
  if (program.direction() == CudnnDirection::forward && !program.has(K::operation_statistics)) return false;
  if (program.direction() == CudnnDirection::backward_data && !program.has(K::operation_norm_backward)) return false;
  for (const std::int64_t channels : {program.w().dimensions[0], program.w().dimensions[1]})
    if (channels % 8 != 0) return false;
  if (program.convolution > 0)  // scale and bias must have the type of x
    for (std::size_t i = 0; i < program.convolution; ++i)
      if (program.operations[i].has(A::operation_pointwise_b) &&
          program.tensors.at(program.operations[i][A::operation_pointwise_b]).type != CudnnType::f16)
        return false;
  // A gradient of x's shape that is added to the result is supported at stride 1 only.
  const auto residuals = std::ranges::count_if(program.operations, [&](const CudnnOperation& operation) {
    return operation.has(A::operation_pointwise_b) &&
           program.tensors.at(operation[A::operation_pointwise_b]).dimensions == program.x().dimensions;
  });
  return residuals == 0 || program.operations[program.convolution].stride[0] == 1;
}

CudnnStatus understand_graph(CudnnObject& graph) {
  const CudnnHandle handle = graph.value<CudnnHandle>(A::graph_handle);
  if (handle == nullptr || handle->destroyed) return wrong("a graph with a handle that is gone");
  Understanding understanding;
  for (const CudnnBackendDescriptor descriptor : graph.values<CudnnBackendDescriptor>(A::graph_operations)) {
    const CudnnObject* const operation = find(descriptor);
    if (operation == nullptr) return Status::bad_param;
    if (const Status status = understanding.add(*operation); status != Status::success) return status;
  }
  if (const Status status = understanding.finish(); status != Status::success) return status;
  graph.program = std::make_shared<const CudnnProgram>(understanding.take());
  return Status::success;
}

}  // namespace dp::simt
