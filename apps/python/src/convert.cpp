#include "convert.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

namespace dp_python {
namespace {

// The memory of an array of another library.
class ArrayMemory : public dp::Storage {
 public:
  explicit ArrayMemory(const Array& array) : array_(array) {}
  void* data() override { return const_cast<void*>(array_.data()); }  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  std::size_t bytes() const override { return array_.nbytes(); }
  dp::Device device() const override { return {}; }
  bool host_accessible() const override { return true; }
  void read(void* dst, const void* src, std::size_t bytes) const override { std::memcpy(dst, src, bytes); }

 private:
  Array array_;
};

struct Type {
  dp::DType ours;
  nb::dlpack::dtype theirs;
};
constexpr std::array<Type, 7> kTypes{
    {{dp::DType::f32, nb::dtype<float>()},
     {dp::DType::f64, nb::dtype<double>()},
     {dp::DType::u8, nb::dtype<std::uint8_t>()},
     {dp::DType::i32, nb::dtype<std::int32_t>()},
     {dp::DType::i64, nb::dtype<std::int64_t>()},
     {dp::DType::bf16, {static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1}},
     {dp::DType::f16, {static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16, 1}}}};

dp::DType type_of(const nb::dlpack::dtype& type) {
  for (const Type& each : kTypes)
    if (each.theirs == type) return each.ours;
  refuse("arrays must have the type float32, float64, float16, bfloat16, uint8, int32 or int64; convert it");
}

}  // namespace

void refuse(const std::string& message) { throw dp::Error(dp::ErrorCode::usage, message); }

dp::Tensor tensor_of(const Array& array) {
  std::vector<std::int64_t> sizes(array.ndim());
  for (std::size_t i = 0; i < array.ndim(); ++i) sizes[i] = static_cast<std::int64_t>(array.shape(i));
  return {dp::Shape(std::span<const std::int64_t>(sizes)), type_of(array.dtype()),
          std::make_shared<ArrayMemory>(array)};
}

dp::Tensor floats_of(const Array& array, const char* what) {
  const dp::Tensor tensor = tensor_of(array);
  switch (tensor.dtype()) {
    case dp::DType::f32:
    case dp::DType::f64:
    case dp::DType::f16:
    case dp::DType::bf16: return tensor.to(dp::DType::f32);
    default: refuse(std::string(what) + " must have the type float32, not " + dp::to_string(tensor.dtype()));
  }
}

dp::Tensor bytes_of(const Array& array, const char* what) {
  dp::Tensor tensor = tensor_of(array);
  if (tensor.dtype() != dp::DType::u8)
    refuse(std::string(what) + " must have the type uint8, not " + dp::to_string(tensor.dtype()));
  return tensor;
}

dp::Tensor labels_of(const Array& array) {
  const dp::Tensor tensor = tensor_of(array);
  if (tensor.dtype() == dp::DType::i32) return tensor;
  dp::Tensor labels(tensor.shape(), dp::DType::i32);
  const auto convert = [&]<typename Number>(std::span<const Number> numbers) {
    std::ranges::transform(numbers, labels.data<std::int32_t>(), [](Number label) {
      if (!std::in_range<std::int32_t>(label)) refuse("label " + std::to_string(label) + " is not a class number");
      return static_cast<std::int32_t>(label);
    });
  };
  if (tensor.dtype() == dp::DType::i64)
    convert(tensor.span<std::int64_t>());
  else if (tensor.dtype() == dp::DType::u8)
    convert(tensor.span<std::uint8_t>());
  else
    refuse(std::string("labels must have the type int32 or int64, not ") + dp::to_string(tensor.dtype()));
  return labels;
}

NumpyArray array_of(const dp::Tensor& tensor) {
  const bool ours = tensor.storage()->host_accessible() && tensor.dtype() != dp::DType::bf16;
  auto* const shared = new dp::Tensor(ours                                ? tensor
                                      : tensor.dtype() == dp::DType::bf16 ? tensor.clone().to(dp::DType::f32)
                                                                          : tensor.clone());
  const nb::capsule owner(shared, [](void* made) noexcept { delete static_cast<dp::Tensor*>(made); });
  std::vector<std::size_t> sizes;
  for (const std::int64_t size : shared->shape().dims()) sizes.push_back(static_cast<std::size_t>(size));
  nb::dlpack::dtype type;
  for (const Type& each : kTypes)
    if (each.ours == shared->dtype()) type = each.theirs;
  return {shared->raw(), sizes.size(), sizes.data(), owner, nullptr, type};
}

NumpyArrays arrays_of(const Named& tensors) {
  NumpyArrays arrays;
  for (const auto& [name, tensor] : tensors) arrays[name.c_str()] = array_of(tensor);
  return arrays;
}

Named tensors_of(const nb::dict& arrays) {
  Named tensors;
  for (const auto& [name, array] : arrays)
    tensors.emplace_back(nb::cast<std::string>(name), tensor_of(nb::cast<Array>(array)));
  return tensors;
}

}  // namespace dp_python
