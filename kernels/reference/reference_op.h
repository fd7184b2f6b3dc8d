// Base of the reference ops: resolved tensors and argument checks.
#pragma once

#include <initializer_list>
#include <string>

#include "dp/error.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/reference/rounding.h"

namespace dp::kernels::reference {

template <typename Desc>
class ReferenceOp : public HostOp {
 protected:
  // `tensors` are the descriptor's, in member order. Types: float64, or a 16-bit type, which is stored as float64.
  // Layouts: plain or any().
  ReferenceOp(const Desc& desc, std::initializer_list<TensorDesc> tensors) : desc_(desc) {
    for (const TensorDesc& tensor : tensors) {
      require(tensor.type == DType::f64 || is_low(tensor.type),
              std::string("the reference computes in float64, not ") + to_string(tensor.type));
      tensors_.push_back(resolve(tensor));
    }
  }

  // Error(usage) with the op, the reason and all shapes, unless `holds`.
  void require(bool holds, const std::string& why) const {
    if (holds) return;
    std::string shapes;
    for (const TensorDesc& tensor : tensors_) shapes += (shapes.empty() ? "; shapes " : " ") + to_string(tensor.shape);
    throw Error(ErrorCode::usage, std::string(name_of(desc_)) + ": " + why + shapes);
  }

  TensorDesc resolve(TensorDesc tensor) const {
    const Layout plain = plain_layout(tensor.shape, tensor.type);
    require(tensor.layout.any() || tensor.layout == plain,
            "the layout '" + tensor.layout.name + "' is not the reference's " + plain.name);
    tensor.layout = plain;
    return tensor;
  }

  const Shape& shape(std::size_t tensor) const { return tensors_[tensor].shape; }

  Desc desc_;
};

inline double* f64(void* data) { return static_cast<double*>(data); }

}  // namespace dp::kernels::reference
