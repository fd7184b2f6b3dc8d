#include "kernels/cuda/vendor/cudnn/cudnn_descriptor.h"

#include <algorithm>

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

}  // namespace dp::kernels::cuda
