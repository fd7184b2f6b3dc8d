// The cuDNN functions that the backend calls.
#include <algorithm>
#include <cstring>

#include "simulated_cuda/cudnn/cudnn_attributes.h"
#include "simulated_cuda/cudnn/cudnn_state.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/runtime/quiet_lock.h"

namespace dp::simt {
namespace {

constexpr std::int64_t kKnobValue = 7;

CudnnStatus wrong(CudnnStatus status, const std::string& what) {
  report("cuDNN: " + what);
  return status;
}

std::size_t get_version() { return 91900; }
const char* get_error_string(CudnnStatus status) {
  switch (status) {
    case CudnnStatus::success: return "CUDNN_STATUS_SUCCESS";
    case CudnnStatus::not_supported: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CudnnStatus::execution_failed: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "CUDNN_STATUS_OTHER";
  }
}
void get_last_error_string(char* text, std::size_t bytes) {
  std::strncpy(text, "planted", bytes);
  text[bytes - 1] = '\0';
}

CudnnStatus create(CudnnHandle* handle) {
  CudnnState& state = cudnn_state();
  const QuietLock lock(state.mutex);
  if (state.refuses_devices) return CudnnStatus::not_initialized;
  state.handles.push_back(std::make_unique<CudnnContext>(CudnnContext{.device = current_device()}));
  *handle = state.handles.back().get();
  return CudnnStatus::success;
}

CudnnStatus destroy(CudnnHandle handle) {
  const QuietLock lock(cudnn_state().mutex);
  if (handle->destroyed) return wrong(CudnnStatus::bad_param, "a handle is destroyed twice");
  must_be_current(handle->device, "cuDNN: a handle", "is destroyed");
  handle->destroyed = true;
  return CudnnStatus::success;
}

CudnnStatus set_stream(CudnnHandle handle, cudaStream_t stream) {
  const QuietLock lock(cudnn_state().mutex);
  if (handle->destroyed) return wrong(CudnnStatus::bad_param, "a stream for a handle that is gone");
  must_be_current(handle->device, "cuDNN: a handle", "gets a stream");
  if (device_of(stream) != handle->device)
    return wrong(CudnnStatus::bad_param,
                 "a handle of " + device_name(handle->device) + " gets a stream of " + device_name(device_of(stream)));
  handle->stream = stream;
  return CudnnStatus::success;
}

CudnnStatus create_descriptor(CudnnKind kind, CudnnBackendDescriptor* descriptor) {
  CudnnState& state = cudnn_state();
  const QuietLock lock(state.mutex);
  auto object = std::make_unique<CudnnObject>(CudnnObject{.kind = kind});
  *descriptor = object.get();
  state.objects.emplace(object.get(), std::move(object));
  return CudnnStatus::success;
}

CudnnStatus destroy_descriptor(CudnnBackendDescriptor descriptor) {
  CudnnState& state = cudnn_state();
  const QuietLock lock(state.mutex);
  if (state.objects.erase(descriptor) == 0)
    return wrong(CudnnStatus::bad_param, "a descriptor is destroyed that does not exist");
  return CudnnStatus::success;
}

CudnnStatus finalize_descriptor(CudnnBackendDescriptor descriptor) {
  CudnnState& state = cudnn_state();
  const QuietLock lock(state.mutex);
  CudnnObject* const object = find(descriptor);
  if (object == nullptr) return CudnnStatus::bad_param;
  if (object->finalized) return wrong(CudnnStatus::bad_param, "a descriptor is finalized twice");
  if (const std::string lacks = missing_attribute(*object); !lacks.empty())
    return wrong(CudnnStatus::bad_param, "a descriptor is finalized without " + lacks);
  const CudnnStatus status = finalize(*object);
  if (status != CudnnStatus::success) return status;
  object->finalized = true;
  if (object->kind == CudnnKind::variant_pack) ++state.variant_packs;
  if (object->kind == CudnnKind::plan) ++state.plans;
  return CudnnStatus::success;
}

CudnnStatus set_attribute(CudnnBackendDescriptor descriptor, CudnnAttribute name, CudnnAttributeType type,
                          std::int64_t count, const void* elements) {
  const QuietLock lock(cudnn_state().mutex);
  CudnnObject* const object = find(descriptor);
  if (object == nullptr) return CudnnStatus::bad_param;
  if (object->finalized) return wrong(CudnnStatus::bad_param, "an attribute is set after finalizing");
  if (count > 0 && elements == nullptr)
    return wrong(CudnnStatus::bad_param_null_pointer, "an attribute is set from nowhere");
  if (const std::string why = refused_attribute(object->kind, name, type, count); !why.empty())
    return wrong(CudnnStatus::bad_param, why);
  const std::size_t bytes = static_cast<std::size_t>(count) * bytes_of(type);
  std::vector<std::byte> copy(bytes);
  if (bytes > 0) std::memcpy(copy.data(), elements, bytes);
  object->attributes[name] = {type, count, std::move(copy)};
  if (type != CudnnAttributeType::descriptor) return CudnnStatus::success;
  for (const CudnnBackendDescriptor other : object->values<CudnnBackendDescriptor>(name)) {
    const CudnnObject* const part = find(other);
    if (part == nullptr) return CudnnStatus::bad_param;
    if (!part->finalized)
      return wrong(CudnnStatus::bad_param_not_finalized, "a descriptor is used before it is finalized");
    if (!may_be(name, part->kind))
      return wrong(CudnnStatus::bad_param_descriptor_type, "attribute " + std::to_string(static_cast<int>(name)) +
                                                               " is no descriptor of kind " +
                                                               std::to_string(static_cast<int>(part->kind)));
  }
  return CudnnStatus::success;
}

// The output arguments of cudnnBackendGetAttribute. Each function writes at most `asked` elements and sets the count.
struct Reading {
  CudnnAttributeType type;
  std::int64_t asked;
  std::int64_t* count;
  void* elements;

  template <typename T>
  CudnnStatus give(CudnnAttributeType own_type, const std::vector<T>& values) const {
    if (type != own_type) return wrong(CudnnStatus::bad_param_attribute_type, "an attribute is read as another type");
    *count = static_cast<std::int64_t>(values.size());
    for (std::size_t i = 0; i < std::min(values.size(), static_cast<std::size_t>(asked)); ++i)
      static_cast<T*>(elements)[i] = values[i];
    return CudnnStatus::success;
  }
  // The caller has created the descriptors.
  CudnnStatus give_objects(CudnnKind kind, const std::vector<CudnnObject>& values) const {
    if (type != CudnnAttributeType::descriptor)
      return wrong(CudnnStatus::bad_param_attribute_type, "descriptors are read as another type");
    *count = static_cast<std::int64_t>(values.size());
    for (std::size_t i = 0; i < std::min(values.size(), static_cast<std::size_t>(asked)); ++i) {
      CudnnObject* const into = find(static_cast<CudnnBackendDescriptor*>(elements)[i]);
      if (into == nullptr || into->kind != kind || into->finalized)
        return wrong(CudnnStatus::bad_param_descriptor_type, "descriptors are read into ones of another kind");
      *into = values[i];
    }
    return CudnnStatus::success;
  }
};

std::vector<CudnnNote> notes_of(CudnnEngine engine, const CudnnProgram& program) {
  if (engine == CudnnEngine::nondeterministic) return {CudnnNote::nondeterministic};
  if (engine == CudnnEngine::winograd) return {CudnnNote::winograd, CudnnNote::winograd_4x4};
  if (engine == CudnnEngine::tensor_core || program.x().type != CudnnType::f32) return {CudnnNote::tensor_core};
  return {};
}

std::vector<CudnnObject> results_of(const CudnnObject& heuristics) {
  const CudnnState& state = cudnn_state();
  const CudnnProgram& program = *heuristics.program;
  const auto mode = heuristics.value<CudnnHeuristics>(CudnnAttribute::heuristics_mode);
  std::vector<CudnnObject> results;
  if (state.refuses_wide_weight_gradients && program.direction() == CudnnDirection::backward_filter &&
      program.w().type != program.x().type)
    return results;
  if (state.refuses_norm_sums && program.has(CudnnKind::operation_norm_backward)) return results;
  if (state.fuses_as_seen && program.fuses_norm() && !fused_as_seen(program)) return results;
  const std::vector<CudnnEngine> engines =
      mode == CudnnHeuristics::fallback ? std::vector{CudnnEngine::plain} : state.engines;
  for (const CudnnEngine engine : engines)
    results.push_back({CudnnKind::engine_config, true, {}, heuristics.program, engine});
  return results;
}

CudnnStatus read(const CudnnObject& object, CudnnAttribute name, const Reading& reading) {
  switch (name) {
    case CudnnAttribute::heuristics_results: return reading.give_objects(CudnnKind::engine_config, results_of(object));
    case CudnnAttribute::config_engine:
      return reading.give_objects(CudnnKind::engine, {{CudnnKind::engine, true, {}, object.program, object.engine}});
    case CudnnAttribute::config_knob_choices:
      return reading.give_objects(CudnnKind::knob_choice,
                                  {{CudnnKind::knob_choice, true, {}, object.program, object.engine}});
    case CudnnAttribute::knob_choice_type:
      return reading.give(CudnnAttributeType::knob_type, std::vector{static_cast<CudnnKnob>(2)});
    case CudnnAttribute::knob_choice_value: return reading.give(CudnnAttributeType::i64, std::vector{kKnobValue});
    case CudnnAttribute::engine_global_index:
      return reading.give(CudnnAttributeType::i64, std::vector{static_cast<std::int64_t>(object.engine)});
    case CudnnAttribute::engine_notes:
      return reading.give(CudnnAttributeType::note, notes_of(object.engine, *object.program));
    case CudnnAttribute::engine_behavior:
      return reading.give(CudnnAttributeType::behavior, object.engine >= CudnnEngine::compiles
                                                            ? std::vector{CudnnBehavior::runtime_compilation}
                                                            : std::vector<CudnnBehavior>{});
    case CudnnAttribute::plan_workspace_size:
      return reading.give(CudnnAttributeType::i64, std::vector{static_cast<std::int64_t>(workspace_of(object.engine))});
    default: return wrong(CudnnStatus::bad_param, "an attribute is read that none here reads");
  }
}

CudnnStatus get_attribute(CudnnBackendDescriptor descriptor, CudnnAttribute name, CudnnAttributeType type,
                          std::int64_t asked, std::int64_t* count, void* elements) {
  const QuietLock lock(cudnn_state().mutex);
  const CudnnObject* const object = find(descriptor);
  if (object == nullptr) return CudnnStatus::bad_param;
  if (!object->finalized) return wrong(CudnnStatus::bad_param_not_finalized, "an attribute is read before finalizing");
  return read(*object, name, {type, asked, count, elements});
}

CudnnStatus check_pack(const CudnnProgram& program, const CudnnLaunch& launch, int device) {
  const auto tensors = program.in_memory();
  if (tensors.size() != launch.pointers.size())
    return wrong(CudnnStatus::bad_param, "a variant pack has other tensors than its graph");
  for (const CudnnTensor* const tensor : tensors) {
    const auto found = launch.pointers.find(tensor->id);
    if (found == launch.pointers.end())
      return wrong(CudnnStatus::bad_param, "a variant pack lacks tensor " + std::to_string(tensor->id));
    if (!check_memory(*tensor, found->second, device)) return CudnnStatus::bad_param;
  }
  const auto bytes = static_cast<std::int64_t>(workspace_of(launch.engine));
  const CudnnTensor workspace{0, 256, CudnnType::f32, {bytes / 4}, {1}, false};
  return bytes == 0 || check_memory(workspace, launch.workspace, device) ? CudnnStatus::success
                                                                         : CudnnStatus::bad_param;
}

CudnnStatus execute(CudnnHandle handle, CudnnBackendDescriptor plan, CudnnBackendDescriptor variant_pack) {
  CudnnState& state = cudnn_state();
  CudnnLaunch* launch = nullptr;
  {
    const QuietLock lock(state.mutex);
    const CudnnObject *const how = find(plan), *const what = find(variant_pack);
    if (how == nullptr || what == nullptr) return CudnnStatus::bad_param;
    if (!how->finalized || !what->finalized)
      return wrong(CudnnStatus::bad_param_not_finalized, "an execution of what is not finalized");
    if (how->kind != CudnnKind::plan || what->kind != CudnnKind::variant_pack)
      return wrong(CudnnStatus::bad_param_descriptor_type, "an execution of other descriptors than a plan and a pack");
    if (handle->destroyed || handle != how->value<CudnnHandle>(CudnnAttribute::plan_handle))
      return wrong(CudnnStatus::bad_param, "an execution with another handle than the plan's");
    for (const CudnnAttribute part : {CudnnAttribute::plan_config})
      if (find(how->value<CudnnBackendDescriptor>(part)) == nullptr) return CudnnStatus::bad_param;
    must_be_current(handle->device, "cuDNN: a handle", "executes a plan");
    if (how->engine == CudnnEngine::fails) return CudnnStatus::execution_failed;
    CudnnLaunch made{how->program, how->engine, {}, what->value<void*>(CudnnAttribute::variant_workspace)};
    const auto ids = what->values<std::int64_t>(CudnnAttribute::variant_ids);
    const auto pointers = what->values<void*>(CudnnAttribute::variant_pointers);
    for (std::size_t i = 0; i < ids.size(); ++i) made.pointers[ids[i]] = pointers[i];
    if (const CudnnStatus status = check_pack(*made.program, made, handle->device); status != CudnnStatus::success)
      return status;
    state.launches.push_back(std::make_unique<CudnnLaunch>(std::move(made)));
    launch = state.launches.back().get();
    static constexpr const char* kDirections[] = {"forward", "backward data", "backward filter"};
    state.runs.push_back("engine " + std::to_string(static_cast<int>(launch->engine)) + ", " +
                         kDirections[static_cast<int>(launch->program->direction())]);
  }
  return enqueue(handle->stream, ForeignWork{"cuDNN", run_cudnn, launch}) == cudaSuccess
             ? CudnnStatus::success
             : CudnnStatus::execution_failed;
}

constexpr CudnnApi kApi{
    get_version,       get_error_string,   get_last_error_string, create,        destroy,       set_stream,
    create_descriptor, destroy_descriptor, finalize_descriptor,   set_attribute, get_attribute, execute};

}  // namespace

CudnnState& cudnn_state() {
  static auto& state = *new CudnnState;
  return state;
}

CudnnObject* find(CudnnBackendDescriptor descriptor) {
  const auto found = cudnn_state().objects.find(descriptor);
  if (found != cudnn_state().objects.end()) return found->second.get();
  report("cuDNN: a descriptor is used that does not exist");
  return nullptr;
}

SimulatedCudnn::SimulatedCudnn(std::vector<CudnnEngine> engines) {
  cudnn_state().engines = std::move(engines);
  provide_cudnn({&kApi, "a stand-in", {}});
}

SimulatedCudnn::~SimulatedCudnn() {
  provide_cudnn({nullptr, {}, "it is not simulated here"});
  CudnnState& state = cudnn_state();
  const QuietLock lock(state.mutex);
  if (!state.objects.empty()) report("cuDNN: " + std::to_string(state.objects.size()) + " descriptors are left");
  state.objects.clear(), state.handles.clear(), state.launches.clear(), state.runs.clear();
  state.refuses_devices = state.refuses_wide_weight_gradients = state.fuses_as_seen = state.refuses_norm_sums = false;
  state.variant_packs = state.plans = 0;
}

void SimulatedCudnn::refuse_devices() { cudnn_state().refuses_devices = true; }
void SimulatedCudnn::refuse_wide_weight_gradients() { cudnn_state().refuses_wide_weight_gradients = true; }
void SimulatedCudnn::refuse_norm_sums() { cudnn_state().refuses_norm_sums = true; }
void SimulatedCudnn::fuse_as_seen() { cudnn_state().fuses_as_seen = true; }
std::vector<std::string> SimulatedCudnn::runs() const {
  const QuietLock lock(cudnn_state().mutex);
  return cudnn_state().runs;
}
int SimulatedCudnn::descriptors() const {
  const QuietLock lock(cudnn_state().mutex);
  return static_cast<int>(cudnn_state().objects.size());
}
int SimulatedCudnn::handles() const {
  const QuietLock lock(cudnn_state().mutex);
  const auto& handles = cudnn_state().handles;
  return static_cast<int>(
      std::count_if(handles.begin(), handles.end(), [](const auto& handle) { return !handle->destroyed; }));
}
int SimulatedCudnn::variant_packs() const {
  const QuietLock lock(cudnn_state().mutex);
  return cudnn_state().variant_packs;
}
int SimulatedCudnn::plans() const {
  const QuietLock lock(cudnn_state().mutex);
  return cudnn_state().plans;
}

std::string candidate_of(CudnnEngine engine) {
  return "cudnn:eng" + std::to_string(static_cast<int>(engine)) + " k2=" + std::to_string(kKnobValue);
}

}  // namespace dp::simt
