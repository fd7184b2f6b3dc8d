// The reference backend. Makes its ops from their descriptors.
#include "kernels/device/reference/reference_backend.h"

#include "kernels/device/host/host_backend.h"
#include "kernels/device/host/host_context.h"
#include "kernels/device/reference/reference_op.h"
#include "kernels/fused/host.h"

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

// The activation, or its gradient, that an op writes: the first that it has of dx, dz, y and dst. Its type is that of
// the tensor with the same name, or of x, which then describes all tensors.
struct Written {
  Position argument;  // not an argument if the op writes none
  TensorDesc tensor;
};
template <typename Desc>
Written written_by(const Desc& desc) {
  constexpr auto at = positions<Desc>();
  const auto of_x = [&](Position argument) -> Written {
    if constexpr (requires { desc.x; }) return {argument, desc.x};
    return {};
  };
  if constexpr (requires { at.dx; }) {
    if constexpr (requires { desc.dx; }) return {at.dx, desc.dx};
    return of_x(at.dx);
  } else if constexpr (requires { at.dz; }) {
    return of_x(at.dz);
  } else if constexpr (requires { at.y; }) {
    if constexpr (requires { desc.y; }) return {at.y, desc.y};
    return of_x(at.y);
  } else if constexpr (requires {
                         at.dst;
                         desc.dst;
                       }) {
    return {at.dst, desc.dst};
  } else {
    return {};
  }
}

// Runs an op in float64, then rounds its output.
class RoundedOp final : public HostOp {
 public:
  RoundedOp(std::unique_ptr<HostOp> op, Written written) : op_(std::move(op)), written_(std::move(written)) {
    tensors_ = op_->tensors();
  }
  std::size_t workspace_bytes() const override { return op_->workspace_bytes(); }

  void execute(std::span<void* const> args, void* workspace) override {
    op_->execute(args, workspace);
    auto* const values = static_cast<double*>(arg_at(args, written_.argument));
    if (values == nullptr) return;
    const TensorDesc& tensor = written_.tensor;
    for (std::int64_t i = 0; i < tensor.shape.numel(); ++i) values[i] = rounded(values[i], tensor.type);
  }

 private:
  std::unique_ptr<HostOp> op_;
  Written written_;
};

}  // namespace

Layout plain_layout(const Shape& shape, DType type) {
  const std::string kind = shape.rank() == 4 ? "nchw" : "plain";
  const char* const types[] = {"f32", "f64", "u8", "i32", "i64", "bf16", "f16"};
  return {kind + ":" + types[static_cast<std::size_t>(type)] + to_string(shape),
          static_cast<std::size_t>(shape.numel()) * element_bytes(type), nullptr};
}

std::size_t element_bytes(DType type) { return is_low(type) ? sizeof(double) : size_of(type); }

std::unique_ptr<HostOp> make_op(const OpDesc& desc) {
  check_shapes(desc, DType::f64, LowPrecision::allowed);
  return std::visit(
      []<typename D>(const D& op) -> std::unique_ptr<HostOp> {
        if constexpr (Fused<D>) {  // each member rounds its own output
          return std::make_unique<FusedHostOp>(members_of<HostOp>(op, [](const auto& one) { return make_op(one); }));
        } else {
          std::unique_ptr<HostOp> made = make(op);
          Written written = written_by(op);
          if (!is_low(written.tensor.type)) return made;
          return std::make_unique<RoundedOp>(std::move(made), std::move(written));
        }
      },
      desc);
}

}  // namespace dp::kernels::reference
