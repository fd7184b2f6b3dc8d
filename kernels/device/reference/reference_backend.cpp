// The reference backend. Makes its ops from their descriptors.
#include "kernels/device/reference/reference_backend.h"

#include <vector>

#include "kernels/device/host/host_backend.h"
#include "kernels/device/host/host_context.h"
#include "kernels/device/reference/reference_op.h"
#include "kernels/fused/fused_host_op.h"

namespace dp::kernels {
namespace {

class ReferenceContext final : public HostContext {
 public:
  using HostContext::HostContext;
  DType compute_type() const override { return DType::f64; }
  DType activation_type() const override { return options().activations.value_or(DType::f64); }
  std::size_t element_bytes(DType type) const override { return reference::element_bytes(type); }
  std::unique_ptr<Op> make_op(const OpDesc& desc) override { return reference::make_op(desc); }
  Layout plain_layout(const Shape& shape, DType type) override { return reference::plain_layout(shape, type); }
  Layout with_type(const TensorDesc& tensor, DType type) override {
    return reference::plain_layout(tensor.shape, type);
  }
};

class ReferenceBackend final : public HostBackend {
 public:
  std::unique_ptr<Context> open(Device device, const ContextOptions& options) override {
    return std::make_unique<ReferenceContext>(device, options);
  }
};

}  // namespace

Backend& reference_backend() {
  static ReferenceBackend backend;
  return backend;
}

}  // namespace dp::kernels

namespace dp::kernels::reference {
namespace {

// An output of an op that may have a 16-bit type.
struct Written {
  Position argument;
  TensorDesc tensor;
};
std::vector<Written> written_by(const Conv2dForward& d) { return {{positions<Conv2dForward>().y, d.y}}; }
std::vector<Written> written_by(const Conv2dBackwardData& d) { return {{positions<Conv2dBackwardData>().dx, d.dx}}; }
std::vector<Written> written_by(const LinearForward& d) { return {{positions<LinearForward>().y, d.y}}; }
std::vector<Written> written_by(const LinearBackwardData& d) { return {{positions<LinearBackwardData>().dx, d.dx}}; }
std::vector<Written> written_by(const ReluForward& d) { return {{positions<ReluForward>().y, d.x}}; }
std::vector<Written> written_by(const ReluBackward& d) { return {{positions<ReluBackward>().dx, d.x}}; }
std::vector<Written> written_by(const MaxPool2dForward& d) { return {{positions<MaxPool2dForward>().y, d.y}}; }
std::vector<Written> written_by(const MaxPool2dBackward& d) { return {{positions<MaxPool2dBackward>().dx, d.dx}}; }
std::vector<Written> written_by(const AvgPool2dForward& d) { return {{positions<AvgPool2dForward>().y, d.y}}; }
std::vector<Written> written_by(const AvgPool2dBackward& d) { return {{positions<AvgPool2dBackward>().dx, d.dx}}; }
std::vector<Written> written_by(const AddForward& d) { return {{positions<AddForward>().y, d.x}}; }
std::vector<Written> written_by(const BatchNormForward& d) { return {{positions<BatchNormForward>().y, d.x}}; }
std::vector<Written> written_by(const BatchNormBackwardSums& d) {
  return {{positions<BatchNormBackwardSums>().dz, d.x}};
}
std::vector<Written> written_by(const BatchNormBackward& d) { return {{positions<BatchNormBackward>().dx, d.x}}; }
std::vector<Written> written_by(const DropoutApply& d) { return {{positions<DropoutApply>().y, d.x}}; }
std::vector<Written> written_by(const Reorder& d) { return {{positions<Reorder>().dst, d.dst}}; }
template <typename Desc>
std::vector<Written> written_by(const Desc&) {
  return {};
}

// Runs an op in float64, then rounds its outputs.
class RoundedOp final : public HostOp {
 public:
  RoundedOp(std::unique_ptr<HostOp> op, std::vector<Written> written)
      : op_(std::move(op)), written_(std::move(written)) {
    tensors_ = op_->tensors();
  }
  std::size_t workspace_bytes() const override { return op_->workspace_bytes(); }

  void execute(std::span<void* const> args, void* workspace) override {
    op_->execute(args, workspace);
    for (const Written& each : written_) {
      auto* const values = static_cast<double*>(arg_at(args, each.argument));
      if (values == nullptr) continue;
      for (std::int64_t i = 0; i < each.tensor.shape.numel(); ++i) values[i] = rounded(values[i], each.tensor.type);
    }
  }

 private:
  std::unique_ptr<HostOp> op_;
  std::vector<Written> written_;
};

// Each member rounds its own outputs.
template <typename Desc>
std::unique_ptr<HostOp> unfused(const Desc& desc) {
  return std::make_unique<FusedHostOp>(desc, [](const auto& part) { return make_op(part); });
}

}  // namespace

std::unique_ptr<HostOp> make(const NormConv2dForward& desc) { return unfused(desc); }
std::unique_ptr<HostOp> make(const NormConv2dBackwardData& desc) { return unfused(desc); }
std::unique_ptr<HostOp> make(const NormConv2dBackwardWeights& desc) { return unfused(desc); }
std::unique_ptr<HostOp> make(const LinearDropoutForward& desc) { return unfused(desc); }
std::unique_ptr<HostOp> make(const Conv2dPoolForward& desc) { return unfused(desc); }
std::unique_ptr<HostOp> make(const Conv2dReluBackwardData& desc) { return unfused(desc); }
std::unique_ptr<HostOp> make(const LinearPoolBackwardData& desc) { return unfused(desc); }
std::unique_ptr<HostOp> make(const LinearReluBackward& desc) { return unfused(desc); }
std::unique_ptr<HostOp> make(const LinearLoss& desc) { return unfused(desc); }

Layout plain_layout(const Shape& shape, DType type) {
  const std::string kind = shape.rank() == 4 ? "nchw" : "plain";
  const char* const types[] = {"f32", "f64", "u8", "i32", "i64", "bf16", "f16"};
  return {kind + ":" + types[static_cast<std::size_t>(type)] + to_string(shape),
          static_cast<std::size_t>(shape.numel()) * element_bytes(type), nullptr};
}

std::size_t element_bytes(DType type) { return is_low(type) ? sizeof(double) : size_of(type); }

std::unique_ptr<HostOp> make_op(const OpDesc& desc) {
  return std::visit(
      [](const auto& op) {
        std::vector<Written> low = written_by(op);
        std::erase_if(low, [](const Written& each) { return !is_low(each.tensor.type); });
        std::unique_ptr<HostOp> made = make(op);
        return low.empty() ? std::move(made) : std::make_unique<RoundedOp>(std::move(made), std::move(low));
      },
      desc);
}

}  // namespace dp::kernels::reference
