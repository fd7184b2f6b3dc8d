#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/low_float.h"
#include "kernels/op_rig.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;
using kernels::Reorder;
using kernels::TensorDesc;

template <typename T>
std::vector<T> narrowed(const HostTensor& tensor) {
  std::vector<T> values;
  for (const double value : tensor.values) values.push_back(static_cast<T>(value));
  return values;
}

// Values of all magnitudes with the special cases of rounding: ties, subnormal numbers, overflows, NaN.
std::vector<float> numbers_to_round(std::size_t count) {
  const float special[] = {0.0f,
                           -0.0f,
                           1 + 0x1p-8f,
                           1 + 3 * 0x1p-8f,
                           1 + 0x1p-11f,
                           -65520.0f,
                           3.4e38f,
                           1e-40f,
                           std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN()};
  std::vector<float> numbers(count);
  Random random(21, RandomUse::synthetic);
  for (std::size_t i = 0; i < count; ++i)
    numbers[i] = i % 7 == 3 ? special[i / 7 % std::size(special)]
                            : std::ldexp(random.uniform(-1, 1), static_cast<int>(random.below(60)) - 40);
  return numbers;
}

template <typename Low>
void check_low(OpRig& rig, DType type, std::int64_t count, std::size_t offset) {
  const Shape shape{count};
  const auto size = static_cast<std::size_t>(count);
  const TensorDesc wide{shape, DType::f32, rig.context().plain_layout(shape, DType::f32)};
  const TensorDesc low{shape, type, rig.context().plain_layout(shape, type)};
  const std::vector<float> numbers = numbers_to_round(offset + size);
  std::vector<Low> rounded(offset + size + 8, Low{0xABCD}), expected = rounded;
  std::vector<float> widened(offset + size + 8, 7), expected_wide = widened;
  for (std::size_t i = offset; i < offset + size; ++i) {
    expected[i] = kernels::from_float<Low>(numbers[i]);
    expected_wide[i] = kernels::to_float(expected[i]);
  }
  const auto from = rig.upload_bytes(numbers.data(), numbers.size() * sizeof(float));
  const auto there = rig.upload_bytes(rounded.data(), rounded.size() * sizeof(Low));
  const auto back = rig.upload_bytes(widened.data(), widened.size() * sizeof(float));
  Low* const middle = static_cast<Low*>(there->data()) + offset;
  rig.run(*rig.context().make_op(Reorder{wide, low}), {static_cast<float*>(from->data()) + offset, middle});
  rig.run(*rig.context().make_op(Reorder{low, wide}), {middle, static_cast<float*>(back->data()) + offset});
  rig.download_bytes(rounded.data(), *there, rounded.size() * sizeof(Low));
  rig.download_bytes(widened.data(), *back, widened.size() * sizeof(float));
  INFO(to_string(Device{rig.kind(), 0}) << " " << to_string(type) << ", " << count << " from " << offset);
  CHECK(rounded == expected);
  CHECK(std::memcmp(widened.data(), expected_wide.data(), widened.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("Reorder converts float32 to 16 bits and back at any address and writes nothing else") {
  for (const DeviceKind kind : tested_kinds()) {
    if (kind == DeviceKind::reference) continue;  // it stores 16-bit types as float64
    OpRig rig(kind);
    for (const std::int64_t count : {1, 3, 4, 1023, 70001})
      for (const std::size_t offset : {0, 1, 4, 8}) {
        check_low<kernels::BFloat16>(rig, DType::bf16, count, offset);
        check_low<kernels::Float16>(rig, DType::f16, count, offset);
      }
  }
}

TEST_CASE("Reorder into a device's preferred layout and back changes no bit and pads with zeros") {
  Random random(18, RandomUse::synthetic);
  for (const DeviceKind kind : tested_kinds())
    for (const std::int64_t channels : {1, 3, 5, 8, 13, 32}) {
      OpRig rig(kind);
      const HostTensor x = random_tensor({3, channels, 5, 7}, random);
      const TensorDesc preferred = rig.desc(x.shape, rig.preferred(x.shape));
      INFO(to_string(Device{kind, 0}) << " " << preferred.layout.name);
      const DeviceTensor there = rig.upload(x, preferred);  // checks the padding
      CHECK(rig.download(there).values == x.values);
      CHECK(rig.download(rig.relaid(there, preferred)).values == x.values);
    }
}

TEST_CASE("Reorder changes the layout of weights between the ops that read them") {
  Random random(19, RandomUse::synthetic);
  for (const DeviceKind kind : tested_kinds())
    for (const std::int64_t in : {3, 13, 32})
      for (const std::int64_t out : {5, 32}) {
        OpRig rig(kind);
        const kernels::Window window{3, 1, 1};
        const Shape x{2, in, 6, 6}, y{2, out, 6, 6};
        const HostTensor w = random_tensor({out, in, 3, 3}, random);
        const auto forward =
            rig.context().make_op(kernels::Conv2dForward{rig.desc(x), rig.desc(w.shape), rig.desc(y), window});
        const auto backward =
            rig.context().make_op(kernels::Conv2dBackwardData{rig.desc(y), rig.desc(w.shape), rig.desc(x), window});
        const TensorDesc first = forward->tensors()[1], second = backward->tensors()[1];
        INFO(to_string(Device{kind, 0}) << " " << first.layout.name << " to " << second.layout.name);
        const DeviceTensor moved = rig.relaid(rig.upload(w, first), second);
        CHECK(rig.download(moved).values == w.values);
        CHECK(rig.download(rig.relaid(moved, first)).values == w.values);
      }
}

TEST_CASE("Reorder converts float32 images and float64 weights to the device's type") {
  Random random(20, RandomUse::synthetic);
  for (const DeviceKind kind : tested_kinds()) {
    INFO(to_string(Device{kind, 0}));
    OpRig rig(kind);
    const HostTensor x = random_tensor({3, 5, 7, 5}, random);
    for (const TensorDesc& to : {rig.desc(x.shape, rig.plain(x.shape)), rig.desc(x.shape, rig.preferred(x.shape))}) {
      const TensorDesc single{x.shape, DType::f32, rig.context().plain_layout(x.shape, DType::f32)};
      const TensorDesc wide{x.shape, DType::f64, rig.context().plain_layout(x.shape, DType::f64)};
      const std::vector<float> floats = narrowed<float>(x);
      const auto device_floats = rig.upload_bytes(floats.data(), floats.size() * sizeof(float));
      const auto device_doubles = rig.upload_bytes(x.values.data(), x.values.size() * sizeof(double));

      DeviceTensor from_single = rig.poisoned(to), from_wide = rig.poisoned(to);
      rig.run(*rig.context().make_op(Reorder{single, to}), {device_floats->data(), from_single.data()});
      rig.run(*rig.context().make_op(Reorder{wide, to}), {device_doubles->data(), from_wide.data()});
      CHECK(rig.download(from_single).values == x.values);
      CHECK(rig.download(from_wide).values == x.values);

      const DeviceTensor as_single = rig.relaid(from_single, single), as_wide = rig.relaid(from_single, wide);
      CHECK(rig.download_raw(as_single).values == x.values);
      CHECK(rig.download_raw(as_wide).values == x.values);
    }
  }
}

TEST_CASE("layouts of the same name are equal only for the same shape and type") {
  for (const DeviceKind kind : tested_kinds()) {
    OpRig rig(kind);
    kernels::Context& context = rig.context();
    const Shape shape{2, 3, 4, 4};
    CHECK(context.plain_layout(shape, DType::f32) == context.plain_layout(shape, DType::f32));
    CHECK_FALSE(context.plain_layout(shape, DType::f32) == context.plain_layout({2, 3, 2, 8}, DType::f32));
    CHECK_FALSE(context.plain_layout(shape, DType::f32) == context.plain_layout(shape, DType::f64));
    CHECK(context.plain_layout(shape, DType::f32).bytes == 96 * 4);
  }
}
