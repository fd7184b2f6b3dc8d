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

#include "simt/cudnn/simulated_cudnn.h"
#include "simt/foreign_work.h"

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

// A graph that has been understood: one convolution, and what is done with its result.
struct CudnnProgram {
  CudnnDirection direction{};
  CudnnTensor x, w, y;  // y: what the graph gives, where it goes forward
  std::optional<CudnnTensor> bias;
  bool relu = false;
  std::vector<std::int64_t> padding, stride;

  std::vector<const CudnnTensor*> in_memory() const;
};

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
  bool refuses_devices = false, refuses_wide_weight_gradients = false;
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
