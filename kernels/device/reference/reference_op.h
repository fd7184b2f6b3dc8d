// Base class, factories and rounding of the reference ops.
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
// One overload of make() per descriptor, so that a missing op does not compile.

// The row-major layout. Its name contains shape and type, hence equal names mean equal layouts.
Layout plain_layout(const Shape& shape, DType type);
std::size_t element_bytes(DType type);  // as Context::element_bytes

// Error(usage) with the op and its shapes if shapes do not match, if an element type is not supported, or if a layout
// is not this backend's.
std::unique_ptr<HostOp> make_op(const OpDesc& desc);

std::unique_ptr<HostOp> make(const Conv2dForward& desc);
std::unique_ptr<HostOp> make(const Conv2dBackwardData& desc);
std::unique_ptr<HostOp> make(const Conv2dBackwardWeights& desc);
std::unique_ptr<HostOp> make(const LinearForward& desc);
std::unique_ptr<HostOp> make(const LinearBackwardData& desc);
std::unique_ptr<HostOp> make(const LinearBackwardWeights& desc);
std::unique_ptr<HostOp> make(const ReluForward& desc);
std::unique_ptr<HostOp> make(const ReluBackward& desc);
std::unique_ptr<HostOp> make(const MaxPool2dForward& desc);
std::unique_ptr<HostOp> make(const MaxPool2dBackward& desc);
std::unique_ptr<HostOp> make(const AvgPool2dForward& desc);
std::unique_ptr<HostOp> make(const AvgPool2dBackward& desc);
std::unique_ptr<HostOp> make(const AddForward& desc);
std::unique_ptr<HostOp> make(const BatchNormMoments& desc);
std::unique_ptr<HostOp> make(const BatchNormMerge& desc);
std::unique_ptr<HostOp> make(const BatchNormTrack& desc);
std::unique_ptr<HostOp> make(const BatchNormRunning& desc);
std::unique_ptr<HostOp> make(const BatchNormFold& desc);
std::unique_ptr<HostOp> make(const BatchNormForward& desc);
std::unique_ptr<HostOp> make(const BatchNormBackwardSums& desc);
std::unique_ptr<HostOp> make(const BatchNormBackward& desc);
std::unique_ptr<HostOp> make(const NormConv2dForward& desc);
std::unique_ptr<HostOp> make(const NormConv2dBackwardData& desc);
std::unique_ptr<HostOp> make(const NormConv2dBackwardWeights& desc);
std::unique_ptr<HostOp> make(const LinearDropoutForward& desc);
std::unique_ptr<HostOp> make(const Conv2dPoolForward& desc);
std::unique_ptr<HostOp> make(const Conv2dReluBackwardData& desc);
std::unique_ptr<HostOp> make(const LinearPoolBackwardData& desc);
std::unique_ptr<HostOp> make(const LinearReluBackward& desc);
std::unique_ptr<HostOp> make(const LinearLoss& desc);
std::unique_ptr<HostOp> make(const DropoutApply& desc);
std::unique_ptr<HostOp> make(const SoftmaxCrossEntropy& desc);
std::unique_ptr<HostOp> make(const Reorder& desc);
std::unique_ptr<HostOp> make(const Fill& desc);
std::unique_ptr<HostOp> make(const Accumulate& desc);
std::unique_ptr<HostOp> make(const MovingAverage& desc);
std::unique_ptr<HostOp> make(const OptimizerUpdate& desc);
std::unique_ptr<HostOp> make(const GradNormPartials& desc);
std::unique_ptr<HostOp> make(const GradNormFinish& desc);
std::unique_ptr<HostOp> make(const GatherImages& desc);

// Mixed precision in the reference backend: a tensor of a 16-bit type is stored as float64, with values rounded to that
// type.

inline bool is_low(DType type) { return type == DType::bf16 || type == DType::f16; }

// Rounds through float32, like a device that computes in float32.
inline double rounded(double value, DType type) {
  const auto single = static_cast<float>(value);
  if (type == DType::bf16) return to_float(from_float<BFloat16>(single));
  if (type == DType::f16) return to_float(from_float<Float16>(single));
  return value;
}

// Base of the reference ops: resolved tensors and argument checks.

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
