#include "kernels/device/cuda/libraries/cudnn_graph.h"

#include <algorithm>

#include "dp/error.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/runtime.h"

namespace dp::kernels::cuda {

std::string describe(const CudnnApi& api, CudnnStatus status) {
  char message[512] = "";
  api.get_last_error_string(message, sizeof message);
  std::string text = message;
  std::replace(text.begin(), text.end(), '\n', ' ');
  return std::string(api.get_error_string(status)) + (text.empty() ? "" : " (" + text + ")");
}

void expect(const CudnnApi& api, CudnnStatus status, const char* what) {
  if (status != CudnnStatus::success) throw CudnnRefusal(std::string(what) + ": " + describe(api, status));
}

CudnnDescriptor::CudnnDescriptor(const CudnnApi& api, CudnnKind kind) : api_(&api) {
  expect(api, api.create_descriptor(kind, &descriptor_), "creating a descriptor");
}

void CudnnDescriptor::finalize() { expect(*api_, api_->finalize(descriptor_), "finalizing a descriptor"); }

void CudnnDescriptor::set_raw(CudnnAttribute name, CudnnAttributeType type, std::size_t count, const void* elements) {
  expect(*api_, api_->set_attribute(descriptor_, name, type, static_cast<std::int64_t>(count), elements),
         "setting an attribute");
}

std::size_t CudnnDescriptor::get_raw(CudnnAttribute name, CudnnAttributeType type, std::size_t most,
                                     void* elements) const {
  std::int64_t count = 0;
  expect(*api_, api_->get_attribute(descriptor_, name, type, static_cast<std::int64_t>(most), &count, elements),
         "reading an attribute");
  return static_cast<std::size_t>(count);
}

std::vector<CudnnDescriptor> CudnnDescriptor::descriptors(CudnnAttribute name, CudnnKind kind, std::size_t most) const {
  std::vector<CudnnDescriptor> made;
  std::vector<CudnnBackendDescriptor> raw;
  for (std::size_t i = 0; i < most; ++i) raw.push_back(made.emplace_back(*api_, kind).get());
  made.resize(std::min(most, get_raw(name, CudnnAttributeType::descriptor, most, raw.data())));
  return made;
}

namespace {

void fill(CudnnDescriptor& convolution, const Window& window) {
  using Pair = std::array<std::int64_t, 2>;
  const Pair strides{window.stride.h, window.stride.w}, dilations{window.dilation.h, window.dilation.w},
      before{window.padding.h, window.padding.w},
      behind{before[0] + window.more_behind.h, before[1] + window.more_behind.w};
  convolution.set(CudnnAttribute::convolution_compute_type, CudnnType::f32);
  convolution.set(CudnnAttribute::convolution_mode, CudnnConvolutionMode::cross_correlation);
  convolution.set(CudnnAttribute::convolution_spatial_dims, std::int64_t{2});
  convolution.set<std::int64_t>(CudnnAttribute::convolution_dilations, std::span<const std::int64_t>(dilations));
  convolution.set<std::int64_t>(CudnnAttribute::convolution_strides, std::span<const std::int64_t>(strides));
  convolution.set<std::int64_t>(CudnnAttribute::convolution_pre_paddings, std::span<const std::int64_t>(before));
  convolution.set<std::int64_t>(CudnnAttribute::convolution_post_paddings, std::span<const std::int64_t>(behind));
  convolution.finalize();
}

struct Names {  // attributes of an operation
  CudnnKind kind;
  CudnnAttribute convolution, x, w, y, alpha, beta;
};
Names names_of(CudnnDirection direction) {
  using A = CudnnAttribute;
  switch (direction) {
    case CudnnDirection::forward:
      return {CudnnKind::operation_forward,
              A::forward_convolution,
              A::forward_x,
              A::forward_w,
              A::forward_y,
              A::forward_alpha,
              A::forward_beta};
    case CudnnDirection::backward_data:
      return {CudnnKind::operation_backward_data,
              A::data_convolution,
              A::data_dx,
              A::data_w,
              A::data_dy,
              A::data_alpha,
              A::data_beta};
    case CudnnDirection::backward_weights: break;
  }
  return {CudnnKind::operation_backward_filter,
          A::filter_convolution,
          A::filter_x,
          A::filter_dw,
          A::filter_dy,
          A::filter_alpha,
          A::filter_beta};
}

}  // namespace

CudnnType cudnn_type(DType type) {
  switch (type) {
    case DType::f32: return CudnnType::f32;
    case DType::bf16: return CudnnType::bf16;
    case DType::f16: return CudnnType::f16;
    default: throw CudnnRefusal(std::string("convolutions are not supported in ") + to_string(type));
  }
}

CudnnTensor tensor_of(std::int64_t id, const TensorDesc& tensor, bool batched) {
  CudnnTensor spec{id, cudnn_type(tensor.type), {}, {}, batched ? sample_alignment(tensor) : kTensorAlignment};
  for (std::size_t i = 0; i < 4; ++i) spec.dimensions[i] = tensor.shape[static_cast<int>(i)];
  const auto [n, c, h, w] = spec.dimensions;
  if (is_channels_last(tensor))
    spec.strides = {c * h * w, 1, w * c, c};
  else
    spec.strides = {c * h * w, h * w, w, 1};
  return spec;
}

CudnnTensor per_channel(std::int64_t id, std::int64_t channels, CudnnType type) {
  return {id, type, {1, channels, 1, 1}, {channels, 1, channels, channels}};
}

CudnnGraph::CudnnGraph(const CudnnTarget& target, std::deque<CudnnDescriptor> parts,
                       const std::vector<CudnnBackendDescriptor>& operations)
    : parts_(std::move(parts)), graph_(*target.api, CudnnKind::operation_graph) {
  graph_.set(CudnnAttribute::graph_operations, operations);
  if (target.handle != nullptr) graph_.set(CudnnAttribute::graph_handle, target.handle);
  graph_.finalize();
}

std::shared_ptr<const CudnnGraph> CudnnGraphBuilder::finish() {
  return std::make_shared<const CudnnGraph>(target_, std::move(parts_), operations_);
}

CudnnGraphBuilder::Tensor CudnnGraphBuilder::tensor(const CudnnTensor& spec) {
  CudnnDescriptor& tensor = part(CudnnKind::tensor);
  tensor.set(CudnnAttribute::tensor_type, spec.type);
  tensor.set<std::int64_t>(CudnnAttribute::tensor_dimensions, std::span<const std::int64_t>(spec.dimensions));
  tensor.set<std::int64_t>(CudnnAttribute::tensor_strides, std::span<const std::int64_t>(spec.strides));
  tensor.set(CudnnAttribute::tensor_id, spec.id);
  tensor.set(CudnnAttribute::tensor_alignment, spec.alignment);
  if (spec.is_virtual) tensor.set(CudnnAttribute::tensor_is_virtual, true);
  tensor.finalize();
  return tensor;
}

CudnnGraphBuilder::Tensor CudnnGraphBuilder::between(CudnnTensor like, CudnnType type) {
  like.id = next_++, like.type = type, like.alignment = kTensorAlignment, like.is_virtual = true;
  return tensor(like);
}

void CudnnGraphBuilder::finish_operation(CudnnDescriptor& operation) {
  operation.finalize();
  operations_.push_back(operation.get());
}

void CudnnGraphBuilder::convolve(CudnnDirection direction, const Window& window, Tensor x, Tensor w, Tensor y) {
  CudnnDescriptor& convolution = part(CudnnKind::convolution);
  fill(convolution, window);
  const Names names = names_of(direction);
  CudnnDescriptor& operation = part(names.kind);
  operation.set(names.convolution, convolution);
  operation.set(names.x, x);
  operation.set(names.w, w);
  operation.set(names.y, y);
  operation.set(names.alpha, 1.0f);
  operation.set(names.beta, 0.0f);
  finish_operation(operation);
}

CudnnDescriptor& CudnnGraphBuilder::pointwise(CudnnPointwise mode) {
  CudnnDescriptor& what = part(CudnnKind::pointwise);
  what.set(CudnnAttribute::pointwise_mode, mode);
  what.set(CudnnAttribute::pointwise_math_precision, CudnnType::f32);
  if (mode == CudnnPointwise::relu || mode == CudnnPointwise::relu_backward)
    what.set(CudnnAttribute::pointwise_nan, CudnnNan::propagated);  // otherwise NaN becomes 0 and hides a failed run
  what.finalize();
  CudnnDescriptor& operation = part(CudnnKind::operation_pointwise);
  operation.set(CudnnAttribute::operation_pointwise_descriptor, what);
  return operation;
}

void CudnnGraphBuilder::relu(Tensor x, Tensor y) {
  CudnnDescriptor& operation = pointwise(CudnnPointwise::relu);
  operation.set(CudnnAttribute::operation_pointwise_x, x);
  operation.set(CudnnAttribute::operation_pointwise_y, y);
  finish_operation(operation);
}

void CudnnGraphBuilder::binary(CudnnPointwise mode, Tensor a, Tensor b, float factor, Tensor y) {
  CudnnDescriptor& operation = pointwise(mode);
  operation.set(CudnnAttribute::operation_pointwise_x, a);
  operation.set(CudnnAttribute::operation_pointwise_b, b);
  operation.set(CudnnAttribute::operation_pointwise_y, y);
  if (factor != 1) operation.set(CudnnAttribute::operation_pointwise_alpha2, factor);
  finish_operation(operation);
}

void CudnnGraphBuilder::relu_backward(Tensor dy, Tensor x, Tensor dx) {
  CudnnDescriptor& operation = pointwise(CudnnPointwise::relu_backward);
  operation.set(CudnnAttribute::operation_pointwise_dy, dy);
  operation.set(CudnnAttribute::operation_pointwise_x, x);
  operation.set(CudnnAttribute::operation_pointwise_dx, dx);
  finish_operation(operation);
}

void CudnnGraphBuilder::statistics(Tensor x, Tensor sum, Tensor squares) {
  CudnnDescriptor& operation = part(CudnnKind::operation_statistics);
  operation.set(CudnnAttribute::statistics_mode, CudnnStatistics::sum_and_squares);
  operation.set(CudnnAttribute::statistics_math_precision, CudnnType::f32);
  operation.set(CudnnAttribute::statistics_x, x);
  operation.set(CudnnAttribute::statistics_sum, sum);
  operation.set(CudnnAttribute::statistics_squares, squares);
  finish_operation(operation);
}

void CudnnGraphBuilder::norm_backward(const NormBackward& norm) {
  CudnnDescriptor& operation = part(CudnnKind::operation_norm_backward);
  operation.set(CudnnAttribute::norm_backward_math_precision, CudnnType::f32);
  operation.set(CudnnAttribute::norm_backward_x, norm.x);
  operation.set(CudnnAttribute::norm_backward_dy, norm.dy);
  operation.set(CudnnAttribute::norm_backward_mean, norm.mean);
  operation.set(CudnnAttribute::norm_backward_inv_std, norm.inv_std);
  operation.set(CudnnAttribute::norm_backward_scale, norm.scale);
  operation.set(CudnnAttribute::norm_backward_dscale, norm.dscale);
  operation.set(CudnnAttribute::norm_backward_dbias, norm.dbias);
  operation.set(CudnnAttribute::norm_backward_dy_factor, norm.dy_factor);
  operation.set(CudnnAttribute::norm_backward_x_factor, norm.x_factor);
  operation.set(CudnnAttribute::norm_backward_constant, norm.constant);
  finish_operation(operation);
}

namespace {

constexpr std::size_t kMostKnobs = 64, kMostNotes = 32, kMostResults = 32;

std::string name_of_config(const CudnnDescriptor& engine, const CudnnDescriptor& config) {
  std::string name = "eng" + std::to_string(engine.element<std::int64_t>(CudnnAttribute::engine_global_index));
  for (const CudnnDescriptor& knob :
       config.descriptors(CudnnAttribute::config_knob_choices, CudnnKind::knob_choice, kMostKnobs))
    name += " k" + std::to_string(static_cast<int>(knob.element<CudnnKnob>(CudnnAttribute::knob_choice_type))) + "=" +
            std::to_string(knob.element<std::int64_t>(CudnnAttribute::knob_choice_value));
  return name;
}

std::vector<CudnnDescriptor> advised(const CudnnTarget& target, const CudnnGraph& graph, CudnnHeuristics mode) {
  CudnnDescriptor heuristics(*target.api, CudnnKind::heuristics);
  heuristics.set(CudnnAttribute::heuristics_graph, graph.get());
  heuristics.set(CudnnAttribute::heuristics_mode, mode);
  if (target.device_properties != nullptr)
    heuristics.set(CudnnAttribute::heuristics_device_properties, *target.device_properties);
  heuristics.finalize();
  return heuristics.descriptors(CudnnAttribute::heuristics_results, CudnnKind::engine_config, kMostResults);
}

// Empty if these heuristics do not support the graph; others may.
std::vector<CudnnDescriptor> advised_or_none(const CudnnTarget& target, const CudnnGraph& graph,
                                             CudnnHeuristics mode) try {
  return advised(target, graph, mode);
} catch (const CudnnRefusal&) {
  return {};
}

}  // namespace

CudnnConfig::CudnnConfig(std::shared_ptr<const CudnnGraph> graph, CudnnDescriptor config)
    : graph_(std::move(graph)), config_(std::move(config)) {
  auto engines = config_.descriptors(CudnnAttribute::config_engine, CudnnKind::engine, 1);
  if (engines.empty()) throw CudnnRefusal("an engine configuration without an engine");
  name_ = name_of_config(engines.front(), config_);
  for (const CudnnNote note : engines.front().elements<CudnnNote>(CudnnAttribute::engine_notes, kMostNotes))
    if (static_cast<int>(note) < 32) notes_ |= 1u << static_cast<int>(note);  // later notes are unknown
  const auto behavior = engines.front().elements<CudnnBehavior>(CudnnAttribute::engine_behavior, kMostNotes);
  compiles_ = std::ranges::find(behavior, CudnnBehavior::runtime_compilation) != behavior.end();
}

bool CudnnConfig::allowed(const CudnnRules& rules) const {
  if (has(CudnnNote::down_convert_inputs) || has(CudnnNote::reduced_precision_reduction)) return false;
  if (rules.deterministic && has(CudnnNote::nondeterministic)) return false;
  if (rules.is_f32 && !rules.tf32 && has(CudnnNote::tensor_core)) return false;
  for (const CudnnNote note : {CudnnNote::fft, CudnnNote::winograd, CudnnNote::winograd_4x4, CudnnNote::winograd_6x6,
                               CudnnNote::winograd_13x13})
    if (!rules.fast && has(note)) return false;
  return true;
}

std::vector<std::shared_ptr<const CudnnConfig>> configs_of(const CudnnTarget& target,
                                                           const std::shared_ptr<const CudnnGraph>& graph,
                                                           const CudnnRules& rules, std::size_t most) {
  std::vector<std::shared_ptr<const CudnnConfig>> configs;
  int compiled = 0;
  const auto known = [&](const std::string& name) {
    return std::any_of(configs.begin(), configs.end(), [&](const auto& other) { return other->name() == name; });
  };
  for (const CudnnHeuristics mode : {CudnnHeuristics::a, CudnnHeuristics::b, CudnnHeuristics::fallback}) {
    if (configs.size() >= most) break;
    for (CudnnDescriptor& descriptor : advised_or_none(target, *graph, mode)) {
      if (configs.size() >= most) break;
      try {
        auto config = std::make_shared<const CudnnConfig>(graph, std::move(descriptor));
        if (!config->allowed(rules) || known(config->name())) continue;
        if (config->compiles() && compiled++ >= kMaxCompiledCudnnCandidates) continue;
        configs.push_back(std::move(config));
      } catch (const CudnnRefusal&) {  // skip a configuration that cannot be read
      }
    }
  }
  return configs;
}

CudnnPlan::CudnnPlan(const CudnnTarget& target, std::shared_ptr<const CudnnConfig> config)
    : config_(std::move(config)), plan_(*target.api, CudnnKind::plan) {
  if (target.handle != nullptr)
    plan_.set(CudnnAttribute::plan_handle, target.handle);
  else if (target.device_properties != nullptr)
    plan_.set(CudnnAttribute::plan_device_properties, *target.device_properties);
  plan_.set(CudnnAttribute::plan_config, config_->get());
  plan_.finalize();
  workspace_bytes_ = static_cast<std::size_t>(plan_.element<std::int64_t>(CudnnAttribute::plan_workspace_size));
}

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
