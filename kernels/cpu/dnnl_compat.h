// All differences between the oneDNN 2.x and 3.x APIs that we use.
#pragma once

#include <dnnl.hpp>
#include <vector>

namespace dp::kernels::dnnl_compat {

using dnnl::memory;
using Dims = memory::dims;

struct ConvShape {
  Dims strides, padding;
  dnnl::algorithm algorithm = dnnl::algorithm::convolution_direct;
};

struct PoolShape {
  Dims strides, kernel, padding;
};

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

inline void append_relu(dnnl::post_ops& ops) { ops.append_eltwise(dnnl::algorithm::eltwise_relu, 0.f, 0.f); }

inline auto conv_forward(const dnnl::engine& e, const memory::desc& x, const memory::desc& w, const memory::desc& b,
                         const memory::desc& y, const ConvShape& s, const dnnl::primitive_attr& attr) {
  return dnnl::convolution_forward::primitive_desc(e, dnnl::prop_kind::forward_training, s.algorithm, x, w, b, y,
                                                   s.strides, s.padding, s.padding, attr);
}
inline auto conv_backward_data(const dnnl::engine& e, const memory::desc& dx, const memory::desc& w,
                               const memory::desc& dy, const ConvShape& s,
                               const dnnl::convolution_forward::primitive_desc& hint,
                               const dnnl::primitive_attr& attr) {
  return dnnl::convolution_backward_data::primitive_desc(e, s.algorithm, dx, w, dy, s.strides, s.padding, s.padding,
                                                         hint, attr);
}
inline auto conv_backward_weights(const dnnl::engine& e, const memory::desc& x, const memory::desc& dw,
                                  const memory::desc& db, const memory::desc& dy, const ConvShape& s,
                                  const dnnl::convolution_forward::primitive_desc& hint,
                                  const dnnl::primitive_attr& attr) {
  return dnnl::convolution_backward_weights::primitive_desc(e, s.algorithm, x, dw, db, dy, s.strides, s.padding,
                                                            s.padding, hint, attr);
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

inline void append_relu(dnnl::post_ops& ops) { ops.append_eltwise(1.f, dnnl::algorithm::eltwise_relu, 0.f, 0.f); }

inline auto conv_forward(const dnnl::engine& e, const memory::desc& x, const memory::desc& w, const memory::desc& b,
                         const memory::desc& y, const ConvShape& s, const dnnl::primitive_attr& attr) {
  const dnnl::convolution_forward::desc desc(dnnl::prop_kind::forward_training, s.algorithm, x, w, b, y, s.strides,
                                             s.padding, s.padding);
  return dnnl::convolution_forward::primitive_desc(desc, attr, e);
}
inline auto conv_backward_data(const dnnl::engine& e, const memory::desc& dx, const memory::desc& w,
                               const memory::desc& dy, const ConvShape& s,
                               const dnnl::convolution_forward::primitive_desc& hint,
                               const dnnl::primitive_attr& attr) {
  const dnnl::convolution_backward_data::desc desc(s.algorithm, dx, w, dy, s.strides, s.padding, s.padding);
  return dnnl::convolution_backward_data::primitive_desc(desc, attr, e, hint);
}
inline auto conv_backward_weights(const dnnl::engine& e, const memory::desc& x, const memory::desc& dw,
                                  const memory::desc& db, const memory::desc& dy, const ConvShape& s,
                                  const dnnl::convolution_forward::primitive_desc& hint,
                                  const dnnl::primitive_attr& attr) {
  const dnnl::convolution_backward_weights::desc desc(s.algorithm, x, dw, db, dy, s.strides, s.padding, s.padding);
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
