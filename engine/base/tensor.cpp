#include "dp/tensor.h"

#include <concepts>
#include <cstdlib>
#include <cstring>
#include <new>

#include "dp/error.h"
#include "kernels/low_float.h"

namespace dp {
namespace {

constexpr std::align_val_t kAlignment{64};

class HostStorage final : public Storage {
 public:
  explicit HostStorage(std::size_t bytes) : bytes_(bytes), data_(bytes ? ::operator new(bytes, kAlignment) : nullptr) {
    if (bytes) std::memset(data_, 0, bytes);
  }
  ~HostStorage() override { ::operator delete(data_, kAlignment); }
  HostStorage(const HostStorage&) = delete;
  HostStorage& operator=(const HostStorage&) = delete;

  void* data() override { return data_; }
  std::size_t bytes() const override { return bytes_; }
  Device device() const override { return {DeviceKind::cpu, 0}; }
  bool host_accessible() const override { return true; }
  void read(void* dst, const void* src, std::size_t bytes) const override { std::memcpy(dst, src, bytes); }

 private:
  std::size_t bytes_;
  void* data_;
};

template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::u8;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::i64;
}

template <typename To, typename From>
To value_as(From value) {
  if constexpr (std::integral<To> && std::floating_point<From>)
    if (!(value >= -0x1p63 && value < 0x1p63)) throw Error(ErrorCode::data, "has a value that int64 cannot hold");
  return static_cast<To>(value);
}

template <typename To, typename From>
void convert(const Tensor& from, Tensor& to) {
  const auto* const source = static_cast<const From*>(from.raw());
  auto* const target = static_cast<To*>(to.raw());
  for (std::int64_t i = 0; i < from.numel(); ++i) {
    if constexpr (std::same_as<From, kernels::BFloat16> || std::same_as<From, kernels::Float16>)
      target[i] = value_as<To>(kernels::to_float(source[i]));
    else
      target[i] = value_as<To>(source[i]);
  }
}

template <typename To>
void convert_to(const Tensor& from, Tensor& to) {
  switch (from.dtype()) {
    case DType::f32: return convert<To, float>(from, to);
    case DType::f64: return convert<To, double>(from, to);
    case DType::u8: return convert<To, std::uint8_t>(from, to);
    case DType::i32: return convert<To, std::int32_t>(from, to);
    case DType::i64: return convert<To, std::int64_t>(from, to);
    case DType::bf16: return convert<To, kernels::BFloat16>(from, to);
    case DType::f16: return convert<To, kernels::Float16>(from, to);
  }
}

}  // namespace

Tensor::Tensor(const Shape& shape, DType type)
    : Tensor(shape, type, std::make_shared<HostStorage>(static_cast<std::size_t>(shape.numel()) * size_of(type))) {}

Tensor::Tensor(const Shape& shape, DType type, std::shared_ptr<Storage> storage)
    : shape_(shape), type_(type), storage_(std::move(storage)), data_(static_cast<std::byte*>(storage_->data())) {
  if (bytes() > storage_->bytes())
    throw Error(ErrorCode::usage, "a tensor of shape " + to_string(shape) + " does not fit into its storage");
}

Device Tensor::device() const { return storage_ ? storage_->device() : Device{}; }

template <typename T>
T* Tensor::data() {
  return const_cast<T*>(static_cast<const Tensor*>(this)->data<T>());
}

template <typename T>
const T* Tensor::data() const {
  if (type_ != dtype_of<T>())
    throw Error(ErrorCode::usage,
                std::string("a tensor of ") + to_string(type_) + " was read as " + to_string(dtype_of<T>()));
  if (storage_ && !storage_->host_accessible())
    throw Error(ErrorCode::usage,
                "a tensor on " + to_string(device()) + " was read by the host; copy it with clone() first");
  return reinterpret_cast<const T*>(data_);
}

template float* Tensor::data<float>();
template double* Tensor::data<double>();
template std::uint8_t* Tensor::data<std::uint8_t>();
template std::int32_t* Tensor::data<std::int32_t>();
template std::int64_t* Tensor::data<std::int64_t>();
template const float* Tensor::data<float>() const;
template const double* Tensor::data<double>() const;
template const std::uint8_t* Tensor::data<std::uint8_t>() const;
template const std::int32_t* Tensor::data<std::int32_t>() const;
template const std::int64_t* Tensor::data<std::int64_t>() const;

Tensor Tensor::rows(std::int64_t begin, std::int64_t end) const {
  if (shape_.rank() == 0 || begin < 0 || begin > end || end > shape_[0])
    throw Error(ErrorCode::usage, "rows " + std::to_string(begin) + " to " + std::to_string(end) +
                                      " are not in a tensor of shape " + to_string(shape_));
  Tensor view = *this;
  view.shape_ = shape_.with_dim(0, end - begin);
  const std::int64_t row = shape_[0] ? numel() / shape_[0] : 0;
  view.data_ += static_cast<std::size_t>(begin * row) * size_of(type_);
  return view;
}

Tensor Tensor::reshaped(const Shape& shape) const {
  if (shape.numel() != numel())
    throw Error(ErrorCode::usage, "a tensor of shape " + to_string(shape_) + " cannot become " + to_string(shape));
  Tensor view = *this;
  view.shape_ = shape;
  return view;
}

Tensor Tensor::clone() const {
  if (empty()) return {};
  Tensor copy(shape_, type_);
  if (bytes()) storage_->read(copy.data_, data_, bytes());
  return copy;
}

Tensor tensor_of(const Shape& shape, std::span<const float> values) {
  if (static_cast<std::int64_t>(values.size()) != shape.numel())
    throw Error(ErrorCode::usage, std::to_string(values.size()) + " values do not fill the shape " + to_string(shape));
  Tensor tensor(shape);
  std::copy(values.begin(), values.end(), tensor.data<float>());
  return tensor;
}

Tensor Tensor::to(DType type) const {
  if (type_ == type) return *this;
  if (!storage_->host_accessible()) return clone().to(type);
  Tensor out(shape_, type);
  switch (type) {
    case DType::f32: convert_to<float>(*this, out); break;
    case DType::f64: convert_to<double>(*this, out); break;
    case DType::i64: convert_to<std::int64_t>(*this, out); break;
    default: throw Error(ErrorCode::usage, std::string("tensors are not converted to ") + to_string(type));
  }
  return out;
}

}  // namespace dp
