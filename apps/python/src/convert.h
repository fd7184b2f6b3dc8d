// Conversions between values of Python and of dp.
#pragma once

#include <dp/device.h>
#include <dp/error.h>
#include <dp/model.h>
#include <dp/shape.h>
#include <dp/tensor.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace dp_python {

// An array of any type, which is copied if it is not contiguous.
using Array = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using NumpyArray = nb::ndarray<nb::numpy>;
using NumpyArrays = nb::typed<nb::dict, nb::str, NumpyArray>;
using Named = std::vector<std::pair<std::string, dp::Tensor>>;

[[noreturn]] void refuse(const std::string& message);  // Error(usage)

// A tensor that shares the array's memory and keeps it alive.
dp::Tensor tensor_of(const Array& array);
// The same as float32, converted from other floats; class numbers as int32, converted from other integers; bytes.
// Error(usage) for other types: bytes are not numbers here.
dp::Tensor floats_of(const Array& array, const char* what);
dp::Tensor labels_of(const Array& array);
dp::Tensor bytes_of(const Array& array, const char* what);
// A numpy array that shares the tensor's memory, or has a copy if the memory is not the host's or numpy lacks the type.
NumpyArray array_of(const dp::Tensor& tensor);
NumpyArrays arrays_of(const Named& tensors);
Named tensors_of(const nb::dict& arrays);

// The enumerator at the position of `name` in `names`. Error(usage) lists them.
template <typename Enum>
Enum choose(const std::string& what, const std::string& name, std::initializer_list<const char*> names) {
  int position = 0;
  std::string all;
  for (const char* each : names) {
    if (name == each) return static_cast<Enum>(position);
    all += (position++ == 0 ? "" : ", ") + std::string(each);
  }
  refuse(what + " '" + name + "' does not exist; choose one of " + all);
}

void bind_data(nb::module_& m);
void bind_models(nb::module_& m);
void bind_builder(nb::module_& m);
void bind_optimizers(nb::module_& m);
void bind_parallel(nb::module_& m);
void bind_trainer(nb::module_& m);
void bind_trained_models(nb::module_& m);
void bind_predictor(nb::module_& m);

}  // namespace dp_python

namespace nanobind::detail {

// One number, or a pair: height, width.
template <>
struct type_caster<dp::HW> {
  NB_TYPE_CASTER(dp::HW, const_name("int | tuple[int, int]"))
  bool from_python(handle src, std::uint8_t flags, cleanup_list* cleanup) noexcept {
    make_caster<int> one;
    if (one.from_python(src, flags, cleanup)) return value = dp::HW(one.value), true;
    make_caster<std::pair<int, int>> two;
    if (!two.from_python(src, flags, cleanup)) return false;
    const std::pair<int, int> sides = nanobind::cast<std::pair<int, int>>(src);
    return value = dp::HW(sides.first, sides.second), true;
  }
  static handle from_cpp(const dp::HW& pair, rv_policy, cleanup_list*) noexcept {
    return make_tuple(pair.h, pair.w).release();
  }
};

template <>
struct type_caster<dp::Padding> {
  NB_TYPE_CASTER(dp::Padding, const_name("int | tuple[int, int] | typing.Literal['same', 'valid']"))
  bool from_python(handle src, std::uint8_t flags, cleanup_list* cleanup) noexcept {
    if (isinstance<str>(src)) {
      const std::string text = borrow<str>(src).c_str();
      value = text == "same" ? dp::kSamePadding : dp::Padding(0);
      return text == "same" || text == "valid";
    }
    make_caster<dp::HW> sides;
    if (!sides.from_python(src, flags, cleanup)) return false;
    return value = dp::Padding(static_cast<dp::HW&>(sides)), true;
  }
  static handle from_cpp(const dp::Padding& padding, rv_policy policy, cleanup_list* cleanup) noexcept {
    return make_caster<dp::HW>::from_cpp(padding, policy, cleanup);
  }
};

template <>
struct type_caster<dp::Shape> {
  NB_TYPE_CASTER(dp::Shape, const_name("tuple[int, ...]"))
  bool from_python(handle src, std::uint8_t flags, cleanup_list* cleanup) noexcept {
    make_caster<std::vector<std::int64_t>> sizes;
    if (!sizes.from_python(src, flags, cleanup)) return false;
    try {
      value = dp::Shape(std::span<const std::int64_t>(static_cast<std::vector<std::int64_t>&>(sizes)));
    } catch (const dp::Error&) {
      return false;
    }
    return true;
  }
  static handle from_cpp(const dp::Shape& shape, rv_policy, cleanup_list*) noexcept {
    list sizes;
    for (const std::int64_t size : shape.dims()) sizes.append(size);
    return nanobind::tuple(sizes).release();
  }
};

// "cpu", "cuda:1", or the number of a GPU.
template <>
struct type_caster<dp::Device> {
  NB_TYPE_CASTER(dp::Device, const_name("str | int"))
  bool from_python(handle src, std::uint8_t flags, cleanup_list* cleanup) noexcept {
    make_caster<int> number;
    if (number.from_python(src, flags, cleanup)) {
      value = {dp::DeviceKind::cuda, number.value};
      return value.index >= 0;
    }
    if (!hasattr(src, "__str__") || isinstance<float_>(src)) return false;
    try {  // also a torch.device
      value = dp::parse_device(str(src).c_str());
    } catch (...) {
      return false;
    }
    return true;
  }
  static handle from_cpp(const dp::Device& device, rv_policy, cleanup_list*) noexcept {
    return str(dp::to_string(device).c_str()).release();
  }
};

}  // namespace nanobind::detail
