#include "kernels/device/cpu/cpu_layout.h"

#include <algorithm>

#include "dp/error.h"
#include "kernels/device/cpu/dnnl_op.h"

namespace dp::kernels {
namespace {

using dnnl::memory;

const char* short_name(DType type) {
  switch (type) {
    case DType::f32: return "f32";
    case DType::f64: return "f64";
    case DType::u8: return "u8";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
  }
  return "?";
}

std::string name_of(const DnnlDesc& md) {
  const dnnl_compat::Blocking b = dnnl_compat::blocking_of(md);
  if (!b.known) throw Error(ErrorCode::usage, "oneDNN chose an opaque memory format, which a layout cannot describe");
  const std::size_t rank = b.dims.size();
  std::vector<std::int64_t> outer = b.padded;
  std::int64_t inner = 1;
  for (std::size_t i = 0; i < b.inner_sizes.size(); ++i) {
    outer[static_cast<std::size_t>(b.inner_axes[i])] /= b.inner_sizes[i];
    inner *= b.inner_sizes[i];
  }
  // The stride of an axis of size 1 does not order it. Place it before the first later axis.
  std::vector<std::size_t> order;
  for (std::size_t axis = 0; axis < rank; ++axis)
    if (outer[axis] != 1) order.push_back(axis);
  std::stable_sort(order.begin(), order.end(), [&](auto i, auto j) { return b.strides[i] > b.strides[j]; });
  for (std::size_t axis = 0; axis < rank; ++axis)
    if (outer[axis] == 1)
      order.insert(std::find_if(order.begin(), order.end(), [&](auto i) { return i > axis; }), axis);

  std::string name, gaps;
  std::int64_t dense = inner;
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    if (outer[*axis] != 1 && b.strides[*axis] != dense) gaps = " strides";
    dense *= outer[*axis];
  }
  for (const std::size_t axis : order) {
    const bool blocked =
        std::find(b.inner_axes.begin(), b.inner_axes.end(), static_cast<std::int64_t>(axis)) != b.inner_axes.end();
    name += static_cast<char>((blocked ? 'A' : 'a') + static_cast<int>(axis));
  }
  for (std::size_t i = 0; i < b.inner_sizes.size(); ++i)
    name += std::to_string(b.inner_sizes[i]) + static_cast<char>('a' + b.inner_axes[i]);
  if (!gaps.empty())
    for (std::size_t axis = 0; axis < rank; ++axis) gaps += (axis == 0 ? " " : ",") + std::to_string(b.strides[axis]);
  return name + gaps;
}

struct NativeDesc : NativeLayout {
  explicit NativeDesc(const DnnlDesc& md) : desc(md) {}
  DnnlDesc desc;
};

}  // namespace

memory::data_type dnnl_type(DType type) {
  return type == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

Layout make_layout(const DnnlDesc& md, DType type) {
  const memory::dims dims = dnnl_compat::blocking_of(md).dims;
  Layout layout;
  layout.name = name_of(md) + ":" + short_name(type) + to_string(Shape(std::span<const std::int64_t>(dims)));
  layout.bytes = md.get_size() / memory::data_type_size(dnnl_compat::type_of(md)) * size_of(type);
  layout.native = std::make_shared<const NativeDesc>(md);
  return layout;
}

Layout plain_cpu_layout(const Shape& shape, DType type) { return make_layout(plain_desc(dims_of(shape), type), type); }

const DnnlDesc& desc_of(const Layout& layout) { return dynamic_cast<const NativeDesc&>(*layout.native).desc; }

std::vector<std::int64_t> places_of(const DnnlDesc& md) {
  const dnnl_compat::Blocking b = dnnl_compat::blocking_of(md);
  std::vector<std::int64_t> result;
  std::vector<std::int64_t> at(b.dims.size(), 0);
  for (;;) {
    std::vector<std::int64_t> outer = at;
    std::int64_t place = 0, inner = 1;
    for (std::size_t i = b.inner_sizes.size(); i-- > 0;) {
      std::int64_t& index = outer[static_cast<std::size_t>(b.inner_axes[i])];
      place += index % b.inner_sizes[i] * inner;
      inner *= b.inner_sizes[i];
      index /= b.inner_sizes[i];
    }
    for (std::size_t axis = 0; axis < outer.size(); ++axis) place += outer[axis] * b.strides[axis];
    result.push_back(place);
    std::size_t axis = at.size();
    while (axis > 0 && ++at[axis - 1] == b.dims[axis - 1]) at[--axis] = 0;
    if (axis == 0) return result;
  }
}

memory::dims dims_of(const Shape& shape) {
  if (shape.rank() == 0) return {1};
  return memory::dims(shape.dims().begin(), shape.dims().end());
}

DnnlDesc plain_desc(const memory::dims& dims, DType type) {
  memory::dims strides(dims.size(), 1);
  for (std::size_t axis = dims.size() - 1; axis > 0; --axis)
    strides[axis - 1] = strides[axis] * std::max<std::int64_t>(1, dims[axis]);
  return DnnlDesc(dims, dnnl_type(type), strides);
}

DnnlDesc any_desc(const memory::dims& dims, DType type) {
  return DnnlDesc(dims, dnnl_type(type), memory::format_tag::any);
}

DnnlDesc with_type(const DnnlDesc& md, DType type) {
  using Tag = memory::format_tag;
  constexpr Tag kTags[] = {Tag::AB16b16a,   Tag::AB16b32a, Tag::AB16b64a,   Tag::nChw4c,   Tag::nChw8c,
                           Tag::nChw16c,    Tag::Abcd8a,   Tag::Oihw16o,    Tag::Ohwi8o,   Tag::Ohwi16o,
                           Tag::OIhw16i16o, Tag::OIhw8i8o, Tag::OIhw16o16i, Tag::OIhw8o8i, Tag::IOhw16o16i,
                           Tag::IOhw16i16o, Tag::OIhw4i4o};
  const memory::data_type wanted = dnnl_type(type);
  if (dnnl_compat::type_of(md) == wanted) return md;
  const dnnl_compat::Blocking b = dnnl_compat::blocking_of(md);
  if (b.known && b.inner_sizes.empty()) return DnnlDesc(b.dims, wanted, b.strides);
  std::string name = name_of(md);
  if (b.inner_sizes.back() == 2) name = b.dims.size() == 2 ? name.substr(0, name.size() - 2) : "ABcd16b16a";
  for (const Tag tag : kTags) {
    const DnnlDesc found(b.dims, wanted, tag, /*allow_empty=*/true);  // empty if the tag has another rank
    if (!dnnl_compat::is_empty(found) && name_of(found) == name) return found;
  }
  return plain_desc(b.dims, type);
}

DnnlDesc requested(const TensorDesc& tensor, const memory::dims& dims) {
  if (tensor.layout.any()) return any_desc(dims, tensor.type);
  const DnnlDesc& md = desc_of(tensor.layout);
  return dnnl_compat::blocking_of(md).dims == dims ? md : md.reshape(dims);
}

TensorDesc resolved(const TensorDesc& tensor, const DnnlDesc& md) {
  return {tensor.shape, tensor.type, make_layout(md, tensor.type)};
}

TensorDesc resolved_plain(const TensorDesc& tensor) {
  if (!tensor.layout.any()) return tensor;
  return {tensor.shape, tensor.type, plain_cpu_layout(tensor.shape, tensor.type)};
}

ActivationView view_of(const TensorDesc& tensor) {
  const dnnl_compat::Blocking b = dnnl_compat::blocking_of(desc_of(tensor.layout));
  const auto refuse = [&]() -> ActivationView {
    throw Error(ErrorCode::usage,
                "layout " + tensor.layout.name + " is not an activation layout; use nchw, nhwc or blocked channels");
  };
  ActivationView v;
  v.n = b.dims[0];
  if (b.dims.size() == 2) {
    if (!b.inner_sizes.empty() || (b.dims[1] != 1 && b.strides[1] != 1)) return refuse();
    v.c = v.blocks = 1;
    v.w = b.dims[1];
    v.stride_n = b.strides[0];
    v.stride_h = v.stride_block = v.w;
    v.stride_w = 1;
    return v;
  }
  if (b.dims.size() != 4 || b.inner_sizes.size() > 1) return refuse();
  v.c = b.dims[1], v.h = b.dims[2], v.w = b.dims[3];
  v.stride_n = b.strides[0], v.stride_block = b.strides[1], v.stride_h = b.strides[2], v.stride_w = b.strides[3];
  if (b.inner_sizes.size() == 1) {
    if (b.inner_axes[0] != 1) return refuse();
    v.block = b.inner_sizes[0];
    v.blocks = b.padded[1] / v.block;
  } else if (v.c > 1 && v.stride_block == 1) {
    v.block = v.c;
    v.blocks = 1;
  } else {
    v.blocks = v.c;
  }
  if (v.w == 1) v.stride_w = v.block;  // size 1: its stride is never used
  if (v.h == 1) v.stride_h = v.stride_w * v.w;
  return v.stride_w == v.block && v.stride_h == v.stride_w * v.w ? v : refuse();
}

ActivationView view_beside(const TensorDesc& tensor, const TensorDesc& other) {
  ActivationView view = view_of(tensor);
  if (view.h * view.w != 1 || view.block != view.c || view_of(other).block != 1) return view;
  view.blocks = view.c;
  view.block = view.stride_block = view.stride_h = view.stride_w = 1;
  return view;
}

ActivationView channels_view_of(const TensorDesc& tensor) {
  ActivationView view = view_of(tensor);
  if (tensor.shape.rank() == 4) return view;
  view.c = view.block = view.w;
  view.w = 1;
  return view;
}

TensorDesc in_layout_of(const TensorDesc& like, const TensorDesc& tensor) {
  if (!tensor.layout.any()) return tensor;
  const ActivationView v = view_of(like);
  using Tag = memory::format_tag;
  if (v.block == 1) return resolved_plain(tensor);
  const bool blocked = !dnnl_compat::blocking_of(desc_of(like.layout)).inner_sizes.empty();
  const Tag tag = !blocked ? Tag::nhwc : v.block == 16 ? Tag::nChw16c : v.block == 8 ? Tag::nChw8c : Tag::nChw4c;
  return resolved(tensor, DnnlDesc(dims_of(tensor.shape), dnnl_type(tensor.type), tag));
}

}  // namespace dp::kernels
