#include "kernels/reference/reference_ops.h"

namespace dp::kernels::reference {

Layout plain_layout(const Shape& shape, DType type) {
  const std::string kind = shape.rank() == 4 ? "nchw" : "plain";
  const char* const types[] = {"f32", "f64", "u8", "i32", "i64"};
  return {kind + ":" + types[static_cast<std::size_t>(type)] + to_string(shape),
          static_cast<std::size_t>(shape.numel()) * size_of(type), nullptr};
}

std::unique_ptr<HostOp> make_op(const OpDesc& desc) {
  return std::visit([](const auto& op) { return make(op); }, desc);
}

}  // namespace dp::kernels::reference
