// What the stand-in for cuDNN remembers. One lock for all; the thread sanitizer does not see it.
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

  std::size_t bytes() const;  // from its first element to behind its last
};

enum class CudnnDirection { forward, backward_data, backward_filter };

// One of a graph. Tensors are named by their ids.
struct CudnnOperation {
  CudnnKind kind{};
  std::map<CudnnAttribute, std::int64_t> tensors{};  // the attributes that are tensors
  CudnnPointwise mode{};                             // of a pointwise operation
  CudnnNan nan{};                                    // likewise
  float factor = 1;                                  // of its second input
  std::vector<std::int64_t> padding{}, stride{};     // of a convolution

  std::int64_t operator[](CudnnAttribute name) const { return tensors.at(name); }
  bool has(CudnnAttribute name) const { return tensors.count(name) > 0; }
};

// A graph that has been understood: one convolution, and what is done before and behind it.
struct CudnnProgram {
  std::vector<CudnnOperation> operations{};  // each behind those whose results it reads
  std::map<std::int64_t, CudnnTensor> tensors{};
  std::set<std::int64_t> written{};  // of them
  std::size_t convolution = 0;       // its place among the operations

  CudnnDirection direction() const;
  // The tensors of the convolution; x and y are the gradients where the direction says so.
  const CudnnTensor& x() const;
  const CudnnTensor& w() const;
  const CudnnTensor& y() const;
  bool has(CudnnKind kind) const;
  bool fuses_norm() const;  // something of a batch normalisation
  std::vector<const CudnnTensor*> in_memory() const;
};
struct CudnnConvolutionNames {
  CudnnAttribute convolution, x, w, y, alpha, beta;
};
CudnnConvolutionNames names_of(CudnnKind kind);
bool is_convolution(CudnnKind kind);
// What an operation writes.
std::vector<CudnnAttribute> written_by(const CudnnOperation& operation);

struct CudnnAttributeValue {
  CudnnAttributeType type;
  std::int64_t count;
  std::vector<std::byte> bytes;
};

// A descriptor. What finalize() has understood of it stands behind the attributes.
struct CudnnObject {
  CudnnKind kind{};
  bool finalized = false;
  std::map<CudnnAttribute, CudnnAttributeValue> attributes{};
  std::shared_ptr<const CudnnProgram> program{};  // of a graph, and of what is made for one
  CudnnEngine engine{};                           // of an engine, a configuration, a plan

  template <typename T>
  std::vector<T> values(CudnnAttribute name) const {
    const auto found = attributes.find(name);
    std::vector<T> result(found == attributes.end() ? 0 : static_cast<std::size_t>(found->second.count));
    if (!result.empty()) std::memcpy(result.data(), found->second.bytes.data(), result.size() * sizeof(T));
    return result;
  }
  // The first one; there is one.
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
CudnnObject* find(CudnnBackendDescriptor descriptor);  // null, and reported, where there is none

// Checks a descriptor that is to be finalized, and understands it. With the lock.
CudnnStatus finalize(CudnnObject& object);
CudnnStatus understand_graph(CudnnObject& graph);
// Whether cuDNN 9.19 was seen to have precompiled engines for it, on an H200: docs/decisions/0024.
bool fused_as_seen(const CudnnProgram& program);
// Reports, and says that a parameter is bad.
CudnnStatus wrong_parameter(const std::string& what);
// Whether a tensor's memory is a device's that a stream of `device` reaches, all of it; else reports.
bool check_memory(const CudnnTensor& tensor, const void* pointer, int device);

// On the stream's thread: computes.
void run_cudnn(const ForeignWork& work, int device, std::uint32_t operation);

}  // namespace dp::simt

// The opaque handle.
struct dp::kernels::cuda::CudnnContext {
  int device;
  cudaStream_t stream = nullptr;
  bool destroyed = false;
  std::thread::id inside{};  // the thread that is in a call with it
};
