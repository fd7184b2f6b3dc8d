#include "golden/golden_file.h"

#include <cstdlib>

#include "dp/checkpoint.h"
#include "support/catch.h"

namespace dp::test {
namespace {

template <typename T>
std::vector<double> widened(const Tensor& tensor) {
  const std::span<const T> values = tensor.span<T>();
  return {values.begin(), values.end()};
}

}  // namespace

std::string golden_folder() {
  const char* const folder = std::getenv("DP_GOLDEN_FOLDER");
  return folder != nullptr && *folder != '\0' ? folder : DP_GOLDEN_DIR;
}

GoldenFile::GoldenFile(const std::string& name) {
  for (auto& [key, tensor] : read_safetensors(golden_folder() + "/" + name)) tensors_.emplace(key, tensor);
}

std::vector<std::string> GoldenFile::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

bool GoldenFile::has_any(const std::string& prefix) const {
  const auto next = tensors_.lower_bound(prefix);
  return next != tensors_.end() && next->first.starts_with(prefix);
}

const Tensor& GoldenFile::at(const std::string& name) const {
  INFO("tensor " << name);
  REQUIRE(has(name));
  return tensors_.at(name);
}

HostTensor GoldenFile::values(const std::string& name) const {
  const Tensor& tensor = at(name);
  switch (tensor.dtype()) {
    case DType::f32: return {tensor.shape(), widened<float>(tensor)};
    case DType::f64: return {tensor.shape(), widened<double>(tensor)};
    case DType::i32: return {tensor.shape(), widened<std::int32_t>(tensor)};
    case DType::i64: return {tensor.shape(), widened<std::int64_t>(tensor)};
    case DType::u8: return {tensor.shape(), widened<std::uint8_t>(tensor)};
    case DType::bf16:
    case DType::f16: break;  // golden files never contain it
  }
  return {};
}

}  // namespace dp::test
