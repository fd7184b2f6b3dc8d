// Base of the ops that run a oneDNN primitive. Supports the APIs of oneDNN 2.x and 3.x.
#pragma once

#include <omp.h>

#include <dnnl.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/op_args.h"

namespace dp::kernels::dnnl_compat {

// All differences between the oneDNN 2.x and 3.x APIs that we use.

using dnnl::memory;
using Dims = memory::dims;

struct ConvShape {
  Dims strides, padding;
  dnnl::algorithm algorithm = dnnl::algorithm::convolution_direct;
  Dims gaps{0, 0};         // of a dilated window: cells between two of its cells
  Dims more_behind{0, 0};  // padding below and right beyond `padding`
  dnnl::prop_kind forward = dnnl::prop_kind::forward_training;

  Dims behind() const { return {padding[0] + more_behind[0], padding[1] + more_behind[1]}; }
};

struct PoolShape {
  Dims strides, kernel, padding;
};

// The slope of a fused ReLU below zero where no gradient follows. With a slope of 0 oneDNN takes the maximum of a value
// and 0, which is 0 for NaN, and so would hide from an evaluation that the network has overflowed. With another slope
// it compares, and NaN stays NaN. A negative value becomes 1e-18 of itself, far below the rounding of any sum that it
// enters. In training NaN shows in the gradients, which must be 0 where nothing flows
// (docs/decisions/0070-nan-and-fused-relu.md).
inline constexpr float kReluSlope = 0x1p-60f;

// The blocked form of a memory descriptor, in elements.
struct Blocking {
  bool known = false;  // false: an opaque format
  Dims dims, padded, strides;
  std::vector<std::int64_t> inner_sizes, inner_axes;  // innermost last
};

#if DNNL_VERSION_MAJOR >= 3

inline memory::data_type type_of(const memory::desc& md) { return md.get_data_type(); }
inline bool is_empty(const memory::desc& md) { return !md; }

inline Blocking blocking_of(const memory::desc& md) {
  Blocking b;
  b.dims = md.get_dims();
  b.padded = md.get_padded_dims();
  b.known = md.get_format_kind() == memory::format_kind::blocked;
  if (!b.known) return b;
  b.strides = md.get_strides();
  for (const auto size : md.get_inner_blks()) b.inner_sizes.push_back(size);
  for (const auto axis : md.get_inner_idxs()) b.inner_axes.push_back(axis);
  return b;
}

inline void append_relu(dnnl::post_ops& ops, float slope) {
  ops.append_eltwise(dnnl::algorithm::eltwise_relu, slope, 0.f);
}

inline auto conv_forward(const dnnl::engine& e, const memory::desc& x, const memory::desc& w, const memory::desc& b,
                         const memory::desc& y, const ConvShape& s, const dnnl::primitive_attr& attr) {
  return dnnl::convolution_forward::primitive_desc(e, s.forward, s.algorithm, x, w, b, y, s.strides, s.gaps, s.padding,
                                                   s.behind(), attr);
}
inline auto conv_backward_data(const dnnl::engine& e, const memory::desc& dx, const memory::desc& w,
                               const memory::desc& dy, const ConvShape& s,
                               const dnnl::convolution_forward::primitive_desc& hint,
                               const dnnl::primitive_attr& attr) {
  return dnnl::convolution_backward_data::primitive_desc(e, s.algorithm, dx, w, dy, s.strides, s.gaps, s.padding,
                                                         s.behind(), hint, attr);
}
inline auto conv_backward_weights(const dnnl::engine& e, const memory::desc& x, const memory::desc& dw,
                                  const memory::desc& db, const memory::desc& dy, const ConvShape& s,
                                  const dnnl::convolution_forward::primitive_desc& hint,
                                  const dnnl::primitive_attr& attr) {
  return dnnl::convolution_backward_weights::primitive_desc(e, s.algorithm, x, dw, db, dy, s.strides, s.gaps, s.padding,
                                                            s.behind(), hint, attr);
}
inline auto linear_forward(const dnnl::engine& e, const memory::desc& x, const memory::desc& w, const memory::desc& b,
                           const memory::desc& y, const dnnl::primitive_attr& attr) {
  return dnnl::inner_product_forward::primitive_desc(e, dnnl::prop_kind::forward_training, x, w, b, y, attr);
}
inline auto linear_backward_data(const dnnl::engine& e, const memory::desc& dx, const memory::desc& w,
                                 const memory::desc& dy, const dnnl::inner_product_forward::primitive_desc& hint,
                                 const dnnl::primitive_attr& attr) {
  return dnnl::inner_product_backward_data::primitive_desc(e, dx, w, dy, hint, attr);
}
inline auto linear_backward_weights(const dnnl::engine& e, const memory::desc& x, const memory::desc& dw,
                                    const memory::desc& db, const memory::desc& dy,
                                    const dnnl::inner_product_forward::primitive_desc& hint,
                                    const dnnl::primitive_attr& attr) {
  return dnnl::inner_product_backward_weights::primitive_desc(e, x, dw, db, dy, hint, attr);
}

inline auto avg_pool_forward(const dnnl::engine& e, const memory::desc& x, const memory::desc& y, const PoolShape& s,
                             const dnnl::primitive_attr& attr) {
  return dnnl::pooling_forward::primitive_desc(e, dnnl::prop_kind::forward_training,
                                               dnnl::algorithm::pooling_avg_include_padding, x, y, s.strides, s.kernel,
                                               Dims(s.kernel.size(), 0), s.padding, s.padding, attr);
}
inline auto avg_pool_backward(const dnnl::engine& e, const memory::desc& dx, const memory::desc& dy, const PoolShape& s,
                              const dnnl::pooling_forward::primitive_desc& hint, const dnnl::primitive_attr& attr) {
  return dnnl::pooling_backward::primitive_desc(e, dnnl::algorithm::pooling_avg_include_padding, dx, dy, s.strides,
                                                s.kernel, Dims(s.kernel.size(), 0), s.padding, s.padding, hint, attr);
}

#else

inline memory::data_type type_of(const memory::desc& md) { return md.data_type(); }
inline bool is_empty(const memory::desc& md) { return md.data.ndims == 0; }

inline Blocking blocking_of(const memory::desc& md) {
  const dnnl_memory_desc_t& d = md.data;
  Blocking b;
  b.dims.assign(d.dims, d.dims + d.ndims);
  b.padded.assign(d.padded_dims, d.padded_dims + d.ndims);
  b.known = d.format_kind == dnnl_blocked && d.extra.flags == 0;
  if (!b.known) return b;
  const dnnl_blocking_desc_t& blocking = d.format_desc.blocking;
  b.strides.assign(blocking.strides, blocking.strides + d.ndims);
  b.inner_sizes.assign(blocking.inner_blks, blocking.inner_blks + blocking.inner_nblks);
  b.inner_axes.assign(blocking.inner_idxs, blocking.inner_idxs + blocking.inner_nblks);
  return b;
}

inline void append_relu(dnnl::post_ops& ops, float slope) {
  ops.append_eltwise(1.f, dnnl::algorithm::eltwise_relu, slope, 0.f);
}

inline auto conv_forward(const dnnl::engine& e, const memory::desc& x, const memory::desc& w, const memory::desc& b,
                         const memory::desc& y, const ConvShape& s, const dnnl::primitive_attr& attr) {
  const dnnl::convolution_forward::desc desc(s.forward, s.algorithm, x, w, b, y, s.strides, s.gaps, s.padding,
                                             s.behind());
  return dnnl::convolution_forward::primitive_desc(desc, attr, e);
}
inline auto conv_backward_data(const dnnl::engine& e, const memory::desc& dx, const memory::desc& w,
                               const memory::desc& dy, const ConvShape& s,
                               const dnnl::convolution_forward::primitive_desc& hint,
                               const dnnl::primitive_attr& attr) {
  const dnnl::convolution_backward_data::desc desc(s.algorithm, dx, w, dy, s.strides, s.gaps, s.padding, s.behind());
  return dnnl::convolution_backward_data::primitive_desc(desc, attr, e, hint);
}
inline auto conv_backward_weights(const dnnl::engine& e, const memory::desc& x, const memory::desc& dw,
                                  const memory::desc& db, const memory::desc& dy, const ConvShape& s,
                                  const dnnl::convolution_forward::primitive_desc& hint,
                                  const dnnl::primitive_attr& attr) {
  const dnnl::convolution_backward_weights::desc desc(s.algorithm, x, dw, db, dy, s.strides, s.gaps, s.padding,
                                                      s.behind());
  return dnnl::convolution_backward_weights::primitive_desc(desc, attr, e, hint);
}
inline auto linear_forward(const dnnl::engine& e, const memory::desc& x, const memory::desc& w, const memory::desc& b,
                           const memory::desc& y, const dnnl::primitive_attr& attr) {
  const dnnl::inner_product_forward::desc desc(dnnl::prop_kind::forward_training, x, w, b, y);
  return dnnl::inner_product_forward::primitive_desc(desc, attr, e);
}
inline auto linear_backward_data(const dnnl::engine& e, const memory::desc& dx, const memory::desc& w,
                                 const memory::desc& dy, const dnnl::inner_product_forward::primitive_desc& hint,
                                 const dnnl::primitive_attr& attr) {
  const dnnl::inner_product_backward_data::desc desc(dx, w, dy);
  return dnnl::inner_product_backward_data::primitive_desc(desc, attr, e, hint);
}
inline auto linear_backward_weights(const dnnl::engine& e, const memory::desc& x, const memory::desc& dw,
                                    const memory::desc& db, const memory::desc& dy,
                                    const dnnl::inner_product_forward::primitive_desc& hint,
                                    const dnnl::primitive_attr& attr) {
  const dnnl::inner_product_backward_weights::desc desc(x, dw, db, dy);
  return dnnl::inner_product_backward_weights::primitive_desc(desc, attr, e, hint);
}

inline auto avg_pool_forward(const dnnl::engine& e, const memory::desc& x, const memory::desc& y, const PoolShape& s,
                             const dnnl::primitive_attr& attr) {
  const dnnl::pooling_forward::desc desc(dnnl::prop_kind::forward_training,
                                         dnnl::algorithm::pooling_avg_include_padding, x, y, s.strides, s.kernel,
                                         s.padding, s.padding);
  return dnnl::pooling_forward::primitive_desc(desc, attr, e);
}
inline auto avg_pool_backward(const dnnl::engine& e, const memory::desc& dx, const memory::desc& dy, const PoolShape& s,
                              const dnnl::pooling_forward::primitive_desc& hint, const dnnl::primitive_attr& attr) {
  const dnnl::pooling_backward::desc desc(dnnl::algorithm::pooling_avg_include_padding, dx, dy, s.strides, s.kernel,
                                          s.padding, s.padding);
  return dnnl::pooling_backward::primitive_desc(desc, attr, e, hint);
}

#endif

}  // namespace dp::kernels::dnnl_compat

namespace dp::kernels {

// Common parts of the oneDNN ops: the engine, and a primitive with prebuilt arguments.

const dnnl::engine& dnnl_engine();                               // one per process
dnnl::primitive_attr op_attributes();                            // the caller provides the scratchpad
dnnl::primitive_attr relu_attributes(bool relu, bool training);  // the same with a fused ReLU, if `relu`

// Whether oneDNN chose its reference loops, hundreds of times slower than its other implementations.
template <typename PrimitiveDesc>
bool is_naive(const PrimitiveDesc& pd) {
  return std::string_view(pd.impl_info_str()).find("ref") != std::string_view::npos;
}

// Sets the calling thread's number of OpenMP threads, without dynamic teams, for the lifetime of this object.
class OmpThreads {
 public:
  explicit OmpThreads(int threads) : before_(omp_get_max_threads()), dynamic_(omp_get_dynamic()) {
    omp_set_num_threads(threads);
    omp_set_dynamic(0);
  }
  ~OmpThreads() {
    omp_set_num_threads(before_);
    omp_set_dynamic(dynamic_);
  }
  OmpThreads(const OmpThreads&) = delete;
  OmpThreads& operator=(const OmpThreads&) = delete;

 private:
  int before_, dynamic_;
};

// A primitive and its memory objects. run() sets pointers and allocates no memory of its own.
class DnnlCall {
 public:
  DnnlCall(const dnnl::primitive& primitive, const DnnlDesc& scratchpad);
  void add_input(int id, const DnnlDesc& md) { add(id, md, false); }
  void add_output(int id, const DnnlDesc& md) { add(id, md, true); }
  std::size_t scratchpad_bytes() const { return scratchpad_bytes_; }
  // Pointers in the order of the add calls.
  void run(int threads, std::span<void* const> pointers, void* scratchpad);

 private:
  struct Arg {
    dnnl::memory memory;
    std::size_t bytes;
    bool output;
  };
  void add(int id, const DnnlDesc& md, bool output);

  dnnl::primitive primitive_;
  dnnl::stream stream_;
  std::vector<Arg> args_;  // the scratchpad is the first
  std::vector<dnnl_exec_arg_t> call_;
  std::size_t scratchpad_bytes_ = 0;
};

// An op that is one primitive. The primitive's pointers are the op's args in order, without an absent bias.
class DnnlOp : public HostOp {
 public:
  template <typename PrimitiveDesc>
  DnnlOp(const dnnl::primitive& primitive, const PrimitiveDesc& pd, int threads)
      : call_(primitive, pd.scratchpad_desc()),
        threads_(threads),
        implementation_(pd.impl_info_str()),
        naive_(is_naive(pd)) {}
  DnnlOp& input(int id, const DnnlDesc& md) { return call_.add_input(id, md), *this; }
  DnnlOp& output(int id, const DnnlDesc& md) { return call_.add_output(id, md), *this; }
  // The primitive does not take this argument.
  DnnlOp& skip(Position arg) { return skipped_ = arg, *this; }
  DnnlOp& tensors_are(std::vector<TensorDesc> tensors) { return tensors_ = std::move(tensors), *this; }

  void execute(std::span<void* const> args, void* workspace) override;
  std::size_t workspace_bytes() const override { return call_.scratchpad_bytes(); }
  std::string implementation() const override { return implementation_; }
  bool is_fallback() const override { return naive_; }

 private:
  DnnlCall call_;
  int threads_;
  Position skipped_;
  std::string implementation_;
  bool naive_;
};

}  // namespace dp::kernels
