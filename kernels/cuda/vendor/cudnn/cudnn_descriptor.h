// Descriptors of cuDNN's backend interface: sets of attributes that are filled, finalized, and then read.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/vendor/cudnn/cudnn_api.h"

namespace dp::kernels::cuda {

// cuDNN does not support a request. Not an error of the run during the search for candidates.
struct CudnnRefusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Throws CudnnRefusal with cuDNN's message unless the status is success.
void expect(const CudnnApi& api, CudnnStatus status, const char* what);
std::string describe(const CudnnApi& api, CudnnStatus status);  // "CUDNN_STATUS_X (its last message)"

template <typename T>
struct CudnnElement;  // maps a C++ type to its attribute type
template <CudnnAttributeType attribute>
struct CudnnElementIs {
  static constexpr CudnnAttributeType type = attribute;
};
template <>
struct CudnnElement<std::int64_t> : CudnnElementIs<CudnnAttributeType::i64> {};
template <>
struct CudnnElement<float> : CudnnElementIs<CudnnAttributeType::f32> {};
template <>
struct CudnnElement<bool> : CudnnElementIs<CudnnAttributeType::boolean> {};
template <>
struct CudnnElement<char> : CudnnElementIs<CudnnAttributeType::character> {};
template <>
struct CudnnElement<void*> : CudnnElementIs<CudnnAttributeType::pointer> {};
template <>
struct CudnnElement<CudnnHandle> : CudnnElementIs<CudnnAttributeType::handle> {};
template <>
struct CudnnElement<CudnnType> : CudnnElementIs<CudnnAttributeType::data_type> {};
template <>
struct CudnnElement<CudnnConvolutionMode> : CudnnElementIs<CudnnAttributeType::convolution_mode> {};
template <>
struct CudnnElement<CudnnHeuristics> : CudnnElementIs<CudnnAttributeType::heuristics_mode> {};
template <>
struct CudnnElement<CudnnPointwise> : CudnnElementIs<CudnnAttributeType::pointwise_mode> {};
template <>
struct CudnnElement<CudnnNan> : CudnnElementIs<CudnnAttributeType::nan_propagation> {};
template <>
struct CudnnElement<CudnnStatistics> : CudnnElementIs<CudnnAttributeType::statistics_mode> {};
template <>
struct CudnnElement<CudnnKnob> : CudnnElementIs<CudnnAttributeType::knob_type> {};
template <>
struct CudnnElement<CudnnBehavior> : CudnnElementIs<CudnnAttributeType::behavior> {};
template <>
struct CudnnElement<CudnnNote> : CudnnElementIs<CudnnAttributeType::note> {};

class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  CudnnDescriptor(const CudnnApi& api, CudnnKind kind);
  CudnnDescriptor(CudnnDescriptor&& other) noexcept
      : api_(other.api_), descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept {
    std::swap(api_, other.api_), std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~CudnnDescriptor() {
    if (descriptor_ != nullptr) api_->destroy_descriptor(descriptor_);
  }

  CudnnBackendDescriptor get() const { return descriptor_; }

  template <typename T>
  void set(CudnnAttribute name, std::span<const T> elements) {
    set_raw(name, CudnnElement<T>::type, elements.size(), elements.data());
  }
  template <typename T>
  void set(CudnnAttribute name, const T& element) {
    set(name, std::span<const T>(&element, 1));
  }
  void set(CudnnAttribute name, const CudnnDescriptor& descriptor) { set(name, std::array{descriptor.get()}); }
  template <std::size_t count>
  void set(CudnnAttribute name, const std::array<CudnnBackendDescriptor, count>& descriptors) {
    set_raw(name, CudnnAttributeType::descriptor, count, descriptors.data());
  }
  void set(CudnnAttribute name, const std::vector<CudnnBackendDescriptor>& descriptors) {
    set_raw(name, CudnnAttributeType::descriptor, descriptors.size(), descriptors.data());
  }
  void finalize();

  template <typename T>
  T element(CudnnAttribute name) const {
    T value{};
    if (get_raw(name, CudnnElement<T>::type, 1, &value) != 1)
      throw CudnnRefusal("a cuDNN descriptor lacks attribute " + std::to_string(static_cast<int>(name)));
    return value;
  }
  // At most `most` elements.
  template <typename T>
  std::vector<T> elements(CudnnAttribute name, std::size_t most) const {
    std::vector<T> values(most);
    values.resize(std::min(most, get_raw(name, CudnnElement<T>::type, most, values.data())));
    return values;
  }
  // At most `most` descriptors. cuDNN copies them into descriptors that the caller creates.
  std::vector<CudnnDescriptor> descriptors(CudnnAttribute name, CudnnKind kind, std::size_t most) const;

 private:
  void set_raw(CudnnAttribute name, CudnnAttributeType type, std::size_t count, const void* elements);
  std::size_t get_raw(CudnnAttribute name, CudnnAttributeType type, std::size_t most, void* elements) const;

  const CudnnApi* api_ = nullptr;
  CudnnBackendDescriptor descriptor_ = nullptr;
};

}  // namespace dp::kernels::cuda
