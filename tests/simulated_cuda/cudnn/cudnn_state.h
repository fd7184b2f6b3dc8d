// State of the simulated cuDNN. One lock protects it; the thread sanitizer does not see this lock.
#pragma once

#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "simulated_cuda/cudnn/simulated_cudnn.h"
#include "simulated_cuda/foreign_work.h"

namespace dp::simt {

using namespace kernels::cuda;  // NOLINT: the names of cudnn_api.h

struct CudnnTensor {
  std::int64_t id = 0, alignment = 0;
  CudnnType type{};
  std::vector<std::int64_t> dimensions, strides;
  bool is_virtual = false;

  std::size_t bytes() const;  // from the first element to the end of the last one
};

enum class CudnnDirection { forward, backward_data, backward_filter };

// An operation of a graph. Tensors are named by their ids.
struct CudnnOperation {
  CudnnKind kind{};
  std::map<CudnnAttribute, std::int64_t> tensors{};  // the attributes that are tensors, and their ids
  CudnnPointwise mode{};                             // of a pointwise operation
  CudnnNan nan{};                                    // of a pointwise operation
  float factor = 1;                                  // multiplies its second input
  std::vector<std::int64_t> padding{}, stride{};     // of a convolution

  std::int64_t operator[](CudnnAttribute name) const { return tensors.at(name); }
  bool has(CudnnAttribute name) const { return tensors.count(name) > 0; }
};

// A parsed graph: one convolution, and the operations before and after it.
struct CudnnProgram {
  std::vector<CudnnOperation> operations{};  // in an order in which each follows the producers of its inputs
  std::map<std::int64_t, CudnnTensor> tensors{};
  std::set<std::int64_t> written{};  // ids of the tensors that the program writes
  std::size_t convolution = 0;       // index of the convolution in `operations`

  CudnnDirection direction() const;
  // The tensors of the convolution. In a backward direction x or y is a gradient.
  const CudnnTensor& x() const;
  const CudnnTensor& w() const;
  const CudnnTensor& y() const;
  bool has(CudnnKind kind) const;
  bool fuses_norm() const;  // whether it contains an operation of a batch normalisation
  std::vector<const CudnnTensor*> in_memory() const;
};
struct CudnnConvolutionNames {
  CudnnAttribute convolution, x, w, y, alpha, beta;
};
CudnnConvolutionNames names_of(CudnnKind kind);
bool is_convolution(CudnnKind kind);
// The attributes of the tensors that an operation writes.
std::vector<CudnnAttribute> written_by(const CudnnOperation& operation);

struct CudnnAttributeValue {
  CudnnAttributeType type;
  std::int64_t count;
  std::vector<std::byte> bytes;
};

// A descriptor. finalize() sets the fields after `attributes`.
struct CudnnObject {
  CudnnKind kind{};
  bool finalized = false;
  std::map<CudnnAttribute, CudnnAttributeValue> attributes{};
  std::shared_ptr<const CudnnProgram> program{};  // of a graph, and of objects made for one
  CudnnEngine engine{};                           // of an engine, a configuration or a plan

  template <typename T>
  std::vector<T> values(CudnnAttribute name) const {
    const auto found = attributes.find(name);
    std::vector<T> result(found == attributes.end() ? 0 : static_cast<std::size_t>(found->second.count));
    if (!result.empty()) std::memcpy(result.data(), found->second.bytes.data(), result.size() * sizeof(T));
    return result;
  }
  // The first value of an attribute that is set.
  template <typename T>
  T value(CudnnAttribute name) const {
    T result{};
    std::memcpy(&result, attributes.at(name).bytes.data(), sizeof(T));
    return result;
  }
};

struct CudnnLaunch {
  std::shared_ptr<const CudnnProgram> program;
  CudnnEngine engine;
  std::map<std::int64_t, void*> pointers;
  void* workspace;
};

struct CudnnState {
  std::mutex mutex;
  std::vector<CudnnEngine> engines;
  bool refuses_devices = false, refuses_wide_weight_gradients = false, fuses_as_seen = false, refuses_norm_sums = false;
  std::map<const void*, std::unique_ptr<CudnnObject>> objects;
  std::vector<std::unique_ptr<CudnnContext>> handles;
  std::vector<std::unique_ptr<CudnnLaunch>> launches;
  std::vector<std::string> runs;
  int variant_packs = 0, plans = 0;
};
CudnnState& cudnn_state();

std::size_t bytes_of(CudnnType type);
std::size_t workspace_of(CudnnEngine engine);
CudnnObject* find(CudnnBackendDescriptor descriptor);  // null, and a report, if the descriptor does not exist

// Validates a descriptor and fills its derived fields. The caller holds the lock.
CudnnStatus finalize(CudnnObject& object);
CudnnStatus understand_graph(CudnnObject& graph);
// Whether cuDNN 9.19 has a precompiled engine for the program on an H200, by measurement: docs/decisions/0024.
bool fused_as_seen(const CudnnProgram& program);
// Reports `what` and returns the status for a bad parameter.
CudnnStatus wrong_parameter(const std::string& what);
// Whether all of a tensor's memory is accessible from `device`. Reports it otherwise.
bool check_memory(const CudnnTensor& tensor, const void* pointer, int device);

// Executes the plan, on the stream's thread.
void run_cudnn(const ForeignWork& work, int device, std::uint32_t operation);

}  // namespace dp::simt

// The opaque handle.
struct dp::kernels::cuda::CudnnContext {
  int device;
  cudaStream_t stream = nullptr;
  bool destroyed = false;
  std::thread::id inside{};  // the thread that is inside a call with this handle
};
