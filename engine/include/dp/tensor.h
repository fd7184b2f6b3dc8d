// Dense row-major tensors with shared ownership. Other layouts are internal to the engine.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "dp/device.h"
#include "dp/shape.h"

namespace dp {

// Memory of one device. Backends derive from it; host memory is built in.
class Storage {
 public:
  virtual ~Storage() = default;
  virtual void* data() = 0;
  virtual std::size_t bytes() const = 0;
  virtual Device device() const = 0;
  virtual bool host_accessible() const = 0;  // whether the host may dereference data()
  // Copies bytes of this memory to the host and waits for the copy. All writes to `src` must have completed.
  virtual void read(void* dst, const void* src, std::size_t bytes) const = 0;
};

// A row-major block. Copies share the memory; clone() does not.
class Tensor {
 public:
  Tensor() = default;
  // In host memory, 64-byte aligned and zeroed.
  explicit Tensor(const Shape& shape, DType type = DType::f32);
  Tensor(const Shape& shape, DType type, std::shared_ptr<Storage> storage);

  const Shape& shape() const { return shape_; }
  DType dtype() const { return type_; }
  std::int64_t numel() const { return shape_.numel(); }
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * size_of(type_); }
  bool empty() const { return storage_ == nullptr; }
  Device device() const;
  const std::shared_ptr<Storage>& storage() const { return storage_; }

  void* raw() { return data_; }
  const void* raw() const { return data_; }
  // Error(usage) if T is not the element type, or if the host cannot access the memory.
  template <typename T>
  T* data();
  template <typename T>
  const T* data() const;
  template <typename T>
  std::span<T> span() {
    return {data<T>(), static_cast<std::size_t>(numel())};
  }
  template <typename T>
  std::span<const T> span() const {
    return {data<T>(), static_cast<std::size_t>(numel())};
  }

  Tensor rows(std::int64_t begin, std::int64_t end) const;  // [begin, end) of the first dimension; shares memory
  Tensor reshaped(const Shape& shape) const;                // shares memory; Error(usage) if numel differs
  Tensor clone() const;                                     // a copy in host memory
  // The values as float32, float64 or int64 on the host, rounded as PyTorch does: to nearest between floats, towards
  // zero from a float to an integer. Shares memory if the type is the same. Error(data) for a value beyond int64.
  Tensor to(DType type) const;

 private:
  Shape shape_;
  DType type_ = DType::f32;
  std::shared_ptr<Storage> storage_;
  std::byte* data_ = nullptr;
};

// A host tensor with these values; for small literals in tests and examples.
Tensor tensor_of(const Shape& shape, std::span<const float> values);

}  // namespace dp
