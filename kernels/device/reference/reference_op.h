// Base class and rounding of the reference ops.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "dp/error.h"
#include "dp/shape.h"
#include "kernels/device/host/host_context.h"
#include "kernels/low_float.h"

namespace dp::kernels::reference {

// The reference ops: naive loops over row-major float64. With mixed precision each output is then rounded to its type.

// The row-major layout. Its name contains shape and type, hence equal names mean equal layouts.
Layout plain_layout(const Shape& shape, DType type);
std::size_t element_bytes(DType type);  // as Context::element_bytes

// Error(usage) with the op and its shapes if shapes do not match, if an element type is not supported, or if a layout
// is not this backend's.
std::unique_ptr<HostOp> make_op(const OpDesc& desc);

// Mixed precision in the reference backend: a tensor of a 16-bit type is stored as float64, with values rounded to that
// type.

// Rounds through float32, like a device that computes in float32.
inline double rounded(double value, DType type) {
  const auto single = static_cast<float>(value);
  if (type == DType::bf16) return to_float(from_float<BFloat16>(single));
  if (type == DType::f16) return to_float(from_float<Float16>(single));
  return value;
}

// Base of the reference ops.
template <typename Desc>
class ReferenceOp : public HostOp {
 protected:
  // `tensors` are the descriptor's, in member order.
  ReferenceOp(const Desc& desc, std::initializer_list<TensorDesc> tensors) : desc_(desc) {
    for (const TensorDesc& tensor : tensors) tensors_.push_back(resolve(tensor));
  }

  // Error(usage) unless the layout is any() or the plain one.
  TensorDesc resolve(TensorDesc tensor) const {
    const Layout plain = plain_layout(tensor.shape, tensor.type);
    if (!tensor.layout.any() && tensor.layout != plain)
      throw Error(ErrorCode::usage, std::string(name_of(desc_)) + ": the layout '" + tensor.layout.name +
                                        "' is not the reference's " + plain.name);
    tensor.layout = plain;
    return tensor;
  }

  const Shape& shape(std::size_t tensor) const { return tensors_[tensor].shape; }

  Desc desc_;
};

inline double* f64(void* data) { return static_cast<double*>(data); }

}  // namespace dp::kernels::reference
