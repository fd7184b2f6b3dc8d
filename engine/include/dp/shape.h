// Tensor shapes, outermost dimension first, and element types.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace dp {

enum class DType : std::uint8_t { f32, f64, u8, i32, i64, bf16, f16 };

std::size_t size_of(DType type);    // bytes of one element
const char* to_string(DType type);  // "float32": names of PyTorch and NumPy

// One number for each direction of an image. A single number counts for both.
struct HW {
  int h = 0, w = 0;

  constexpr HW() = default;
  constexpr HW(int both) : h(both), w(both) {}  // NOLINT(google-explicit-constructor): `.kernel = 3` is what is written
  constexpr HW(int height, int width) : h(height), w(width) {}
  friend constexpr bool operator==(const HW&, const HW&) = default;
};

std::string to_string(const HW& pair);  // "3", or "1x3" (height first) if they differ

// Up to eight non-negative dimensions. Rank 0 is a scalar of one element.
class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  // Error(usage) for a negative size, more than kMaxRank dimensions, or 2^63 or more elements.
  explicit Shape(std::span<const std::int64_t> dims);

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return dims_[static_cast<std::size_t>(axis)]; }
  std::int64_t numel() const;
  std::span<const std::int64_t> dims() const { return {dims_.data(), static_cast<std::size_t>(rank_)}; }

  Shape with_dim(int axis, std::int64_t size) const;  // this shape with one size replaced
  Shape prepended(std::int64_t size) const;           // (size, *this...): adds a batch dimension
  Shape without_first() const;                        // drops the batch dimension

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, kMaxRank> dims_{};  // unused entries are zero, so that the memberwise == is correct
  int rank_ = 0;
};

std::string to_string(const Shape& shape);  // "(64, 1, 28, 28)"

}  // namespace dp
