// What the descriptors of ops are made of. An op's family has a folder: its op.h has the descriptors, each with the
// op's name, arguments, checks and arithmetic; the other files there are the implementations of every backend.
// kernels/ops.h lists all descriptors.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "kernels/layout.h"

namespace dp::kernels {

// Declares Args, an op's arguments in the order of Op::run: pointers (P = void*), or the operands of a plan.
#define DP_ARGS(...)    \
  template <typename P> \
  struct Args {         \
    P __VA_ARGS__;      \
  }

class HostOp;
struct CpuOpOptions;
namespace cuda {
class CudaOp;
struct CudaOpOptions;
}  // namespace cuda

// Declare the functions that make an op from its descriptor: in float32 on the CPU, in float64 as the reference, and on
// CUDA. Each is defined in the file of the family's folder that implements the op. The caller has checked the
// descriptor (check_shapes). Host backends run fused ops as their members (fused/members.h).
#define DP_ON_CUDA(Desc)                                           \
  namespace cuda {                                                 \
  std::unique_ptr<CudaOp> make(const Desc&, const CudaOpOptions&); \
  }                                                                \
  static_assert(true)
#define DP_ON_EVERY_BACKEND(Desc)                                 \
  std::unique_ptr<HostOp> make(const Desc&, const CpuOpOptions&); \
  namespace reference {                                           \
  std::unique_ptr<HostOp> make(const Desc&);                      \
  }                                                               \
  DP_ON_CUDA(Desc)

// Arguments by name.

template <typename D>
using Pointers = typename D::template Args<void*>;

template <typename D>
inline constexpr std::size_t kArgCount = sizeof(typename D::template Args<char>);

template <typename D, typename P>
constexpr std::array<P, kArgCount<D>> in_order(const typename D::template Args<P>& args) {
  return std::bit_cast<std::array<P, kArgCount<D>>>(args);
}

// The pointers of Op::run by name; null where `args` is shorter.
template <typename D>
Pointers<D> args_of(std::span<void* const> args) {
  std::array<void*, kArgCount<D>> all{};
  std::copy_n(args.begin(), std::min(args.size(), all.size()), all.begin());
  return std::bit_cast<Pointers<D>>(all);
}

struct Position {  // of an argument
  int index = -1;  // -1: not an argument
};

template <typename D>
constexpr typename D::template Args<Position> positions() {
  return []<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    return typename D::template Args<Position>{Position{static_cast<int>(kIndex)}...};
  }
  (std::make_index_sequence<kArgCount<D>>());
}
inline void* arg_at(std::span<void* const> args, Position position) {
  return position.index < 0 ? nullptr : args[static_cast<std::size_t>(position.index)];
}

struct Window {  // of a convolution or a pool
  HW kernel = 3;
  HW stride = 1;
  HW padding = 0;  // above and left
  HW dilation = 1;
  // Padding below and right beyond that above and left: of a convolution 0 or 1, of a pool in ceil mode less than the
  // stride.
  HW more_behind = 0;

  // Equal in both directions, without dilation, and with the same padding on all sides.
  bool is_square() const {
    return kernel.h == kernel.w && stride.h == stride.w && padding.h == padding.w && dilation == 1 && more_behind == 0;
  }
  // 2 x 2 cells that do not overlap and need no padding: the most frequent pool.
  bool halves() const { return is_square() && kernel == 2 && stride == 2 && padding == 0; }
};

struct DropoutSpec {
  float p = 0.5f;
  std::uint32_t layer = 0;  // part of the random key: the layer's index in the model
};

// The product with weights that an op of a convolution or linear layer computes.
struct Product {
  std::string kind;  // the op without what is fused with it
  Shape x, w, y;
  Window window{.kernel = 1};
  bool pooled = false;      // fused with its pool, or a data gradient with the pool's: tensor 2 is not stored
  bool normalises = false;  // fused with parts of a batch normalisation
  int read_beside = 0;      // tensors of dx's size that it reads for the normalisation before it
  int gradients = 1;        // computed by the op
};

// The 16-bit types of activations and weights that a device supports. converted: both, but only in Reorder, to and from
// float32. bfloat16: bfloat16 in all ops, float16 only in Reorder.
enum class LowPrecision { refused, converted, bfloat16, allowed };

inline bool is_low(DType type) { return type == DType::bf16 || type == DType::f16; }

// What a descriptor's check() uses. Its functions throw Error(usage) with the op and its shapes.
class OpCheck {
 public:
  // op: the name and the shapes. compute: the type in which the device computes.
  OpCheck(std::string op, DType compute, LowPrecision low) : op_(std::move(op)), compute_(compute), low_(low) {}

  [[noreturn]] void refuse(const std::string& why) const;
  void require(bool holds, const char* why) const {
    if (!holds) refuse(why);
  }
  void compute_type(std::initializer_list<const TensorDesc*> tensors) const;
  // Activations and the weights that layers read: all of the compute type, or all of one 16-bit type.
  void one_type(std::initializer_list<const TensorDesc*> tensors) const;
  void low_type(DType type) const;            // of a copy of the weights
  void converts(DType from, DType to) const;  // the conversion is one that Reorder does
  void scales_losses() const;                 // the device can scale losses
  void count(std::int64_t count) const;       // must not be negative
  void at_least_one(std::int64_t count, const char* of) const;
  void rank(std::initializer_list<const TensorDesc*> tensors, int rank) const;
  void dropout(const DropoutSpec& dropout) const;
  // y has the shape that the window makes of x; both are (N,C,H,W), C is not compared.
  void window(const Shape& x, const Shape& y, const Window& window) const;

 private:
  bool supports(DType type) const;

  std::string op_;
  DType compute_;
  LowPrecision low_;
};

}  // namespace dp::kernels
