#include "kernels/reference/reference_backend.h"

#include "kernels/host/host_backend.h"
#include "kernels/host/host_context.h"
#include "kernels/reference/reference_ops.h"

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
