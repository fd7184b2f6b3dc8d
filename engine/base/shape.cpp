#include "dp/shape.h"

#include <limits>

#include "dp/error.h"

namespace dp {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage: return "usage";
    case ErrorCode::data: return "data";
    case ErrorCode::device: return "device";
    case ErrorCode::nonfinite: return "non-finite";
    case ErrorCode::timeout: return "timeout";
    case ErrorCode::io: return "input/output";
  }
  return "unknown";
}

std::size_t size_of(DType type) {
  switch (type) {
    case DType::f32: return 4;
    case DType::f64: return 8;
    case DType::u8: return 1;
    case DType::i32: return 4;
    case DType::i64: return 8;
    case DType::bf16: return 2;
    case DType::f16: return 2;
  }
  return 0;
}

const char* to_string(DType type) {
  switch (type) {
    case DType::f32: return "float32";
    case DType::f64: return "float64";
    case DType::u8: return "uint8";
    case DType::i32: return "int32";
    case DType::i64: return "int64";
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
  }
  return "unknown";
}

Shape::Shape(std::span<const std::int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  if (dims.size() > kMaxRank) throw Error(ErrorCode::usage, "a shape has at most 8 dimensions");
  std::int64_t count = 1;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 0) throw Error(ErrorCode::usage, "a dimension of a shape is negative");
    if (dims[i] != 0 && count > std::numeric_limits<std::int64_t>::max() / dims[i])
      throw Error(ErrorCode::usage, "a shape has more than 2^63 elements");
    count *= dims[i];
    dims_[i] = dims[i];
  }
}

std::int64_t Shape::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t size : dims()) count *= size;
  return count;
}

Shape Shape::with_dim(int axis, std::int64_t size) const {
  Shape result = *this;
  result.dims_.at(static_cast<std::size_t>(axis)) = size;
  return Shape(result.dims());
}

Shape Shape::prepended(std::int64_t size) const {
  std::array<std::int64_t, kMaxRank + 1> dims{size};
  for (int i = 0; i < rank_; ++i) dims[static_cast<std::size_t>(i + 1)] = (*this)[i];
  return Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(rank_ + 1)));
}

Shape Shape::without_first() const {
  if (rank_ == 0) throw Error(ErrorCode::usage, "a scalar has no first dimension");
  return Shape(dims().subspan(1));
}

std::string to_string(const HW& pair) {
  return pair.h == pair.w ? std::to_string(pair.h) : std::to_string(pair.h) + "x" + std::to_string(pair.w);
}

std::string to_string(const Shape& shape) {
  std::string text = "(";
  for (int i = 0; i < shape.rank(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.rank() == 1 ? ",)" : ")");
}

}  // namespace dp
