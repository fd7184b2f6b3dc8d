#include "kernels/op.h"

#include <algorithm>

#include "dp/error.h"

namespace dp::kernels {

void OpCheck::refuse(const std::string& why) const { throw Error(ErrorCode::usage, op_ + ": " + why); }

bool OpCheck::supports(DType type) const {
  return is_low(type) && (low_ == LowPrecision::allowed || (low_ == LowPrecision::bfloat16 && type == DType::bf16));
}

void OpCheck::compute_type(std::initializer_list<const TensorDesc*> tensors) const {
  for (const TensorDesc* tensor : tensors)
    if (tensor->type != compute_)
      refuse(std::string("this device computes in ") + to_string(compute_) + ", not " + to_string(tensor->type));
}

void OpCheck::one_type(std::initializer_list<const TensorDesc*> tensors) const {
  const DType type = (*tensors.begin())->type;
  if (!supports(type)) return compute_type(tensors);
  for (const TensorDesc* tensor : tensors)
    if (tensor->type != type)
      refuse(std::string("activations and weights must have one type, not ") + to_string(type) + " and " +
             to_string(tensor->type));
}

void OpCheck::low_type(DType type) const {
  if (!is_low(type)) refuse(std::string("the copy of the weights must be bfloat16 or float16, not ") + to_string(type));
  if (!supports(type)) refuse(std::string("this device does not support mixed precision in ") + to_string(type));
}

void OpCheck::converts(DType from, DType to) const {
  const auto reads = [&](DType type, DType other) {
    if (type == DType::f32 || type == DType::f64) return true;
    if (!is_low(type) || low_ == LowPrecision::refused) return false;
    return other == DType::f32 || other == compute_ || (supports(type) && other == type);
  };
  if (reads(from, to) && reads(to, from)) return;
  refuse(std::string("cannot convert ") + to_string(from) + " to " + to_string(to) +
         " on this device; convert to float32 first");
}

void OpCheck::scales_losses() const {
  if (low_ != LowPrecision::allowed) refuse("this device does not scale losses");
}

void OpCheck::count(std::int64_t count) const {
  if (count < 0) refuse("the count " + std::to_string(count) + " is negative");
}

void OpCheck::at_least_one(std::int64_t count, const char* of) const {
  if (count < 1) refuse(std::string("there must be at least one ") + of + ", not " + std::to_string(count));
}

void OpCheck::rank(std::initializer_list<const TensorDesc*> tensors, int rank) const {
  for (const TensorDesc* tensor : tensors)
    if (tensor->shape.rank() != rank)
      refuse("a tensor must have " + std::to_string(rank) + " dimensions, not " + to_string(tensor->shape));
}

void OpCheck::dropout(const DropoutSpec& dropout) const {
  if (!(dropout.p >= 0 && dropout.p < 1)) refuse("dropout's p must be in [0, 1), not " + std::to_string(dropout.p));
}

void OpCheck::window(const Shape& x, const Shape& y, const Window& window) const {
  const auto fits = [&](int axis, int HW::*side) {
    const std::int64_t kernel = window.kernel.*side, stride = window.stride.*side, padding = window.padding.*side,
                       dilation = window.dilation.*side, more = window.more_behind.*side;
    if (kernel < 1 || stride < 1 || padding < 0 || dilation < 1 || more < 0 ||
        more >= std::max<std::int64_t>(2, stride))
      return false;
    const std::int64_t padded = x[axis] + 2 * padding + more, span = dilation * (kernel - 1) + 1;
    return padded >= span && y[axis] == (padded - span) / stride + 1;
  };
  require(fits(2, &HW::h) && fits(3, &HW::w), "the output does not fit the input and the window");
}

}  // namespace dp::kernels
