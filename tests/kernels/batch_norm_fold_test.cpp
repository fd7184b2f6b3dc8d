// Tests BatchNormFold on every device, in float32 and in 16 bits, with weights in the layouts that convolutions choose.
#include <cmath>
#include <optional>

#include "kernels/everywhere.h"
#include "kernels/low_float.h"
#include "support/emulated_bfloat16.h"

namespace {

using namespace dp;
using namespace dp::test;
using kernels::BatchNormFold;
using kernels::TensorDesc;

constexpr double kEps = 1e-3;

struct FoldCase {
  HostTensor w, weight, bias, mean, variance;
  std::optional<HostTensor> b;  // of the convolution
};

FoldCase random_fold(const Shape& shape, bool b, Random& random) {
  const auto vector = [&] { return random_tensor({shape[0]}, random); };
  FoldCase one{random_tensor(shape, random), vector(), vector(), vector(), vector(), {}};
  for (double& value : one.variance.values) value = static_cast<float>(std::abs(value) + 0.1);
  if (b) one.b = vector();
  return one;
}

struct Folded {
  HostTensor w, b;
};

// Computes the folded weights and bias in double.
Folded folded_exactly(const FoldCase& one) {
  Folded folded{one.w, one.bias};
  const std::size_t filter = one.w.values.size() / one.weight.values.size();
  for (std::size_t c = 0; c < one.weight.values.size(); ++c) {
    const double scale = one.weight.values[c] / std::sqrt(one.variance.values[c] + kEps);
    folded.b.values[c] += ((one.b ? one.b->values[c] : 0) - one.mean.values[c]) * scale;
    for (std::size_t i = c * filter; i < (c + 1) * filter; ++i) folded.w.values[i] *= scale;
  }
  return folded;
}

// Also rounds `one.w` to the type of `w`.
Folded fold(OpRig& rig, FoldCase& one, const TensorDesc& w) {
  const auto op = rig.context().make_op(BatchNormFold{w, kEps});
  const auto plain = [&](const HostTensor& t) { return rig.upload(t, rig.plain_full(t.shape)); };
  std::optional<DeviceTensor> b;
  if (one.b) b = plain(*one.b);
  const DeviceTensor weights = rig.upload(one.w, w), folded_w = rig.poisoned(w),
                     folded_b = rig.poisoned(rig.plain_full(one.bias.shape));
  one.w = rig.download(weights);
  rig.run(*op, {weights.data(), b ? b->data() : nullptr, plain(one.weight).data(), plain(one.bias).data(),
                plain(one.mean).data(), plain(one.variance).data(), folded_w.data(), folded_b.data()});
  return {rig.download(folded_w), rig.download(folded_b)};
}

// Returns the row-major layout and those in which replicas store the weights of convolutions.
std::vector<TensorDesc> weight_layouts(OpRig& rig, const Shape& weights) {
  std::vector<TensorDesc> layouts{rig.desc(weights, rig.plain(weights))};
  for (const std::int64_t size : {4, 20}) {
    const int kernel = static_cast<int>(weights[2]);
    const kernels::Conv2dForward conv{rig.desc({3, weights[1], size, size}),
                                      rig.desc(weights),
                                      rig.desc({3, weights[0], size, size}),
                                      {kernel, 1, kernel / 2},
                                      true,
                                      true};
    const TensorDesc read = rig.context().make_op(conv)->tensors()[1];
    const TensorDesc stored = rig.full(weights, rig.context().with_type(read, rig.context().compute_type()));
    layouts.push_back(rig.desc(weights, rig.context().with_type(stored, rig.context().activation_type())));
  }
  return layouts;
}

void check_folds(OpRig& rig, double tolerance) {
  Random random(61, RandomUse::synthetic);
  for (const Shape& shape :
       {Shape{16, 3, 3, 3}, Shape{33, 16, 3, 3}, Shape{20, 17, 1, 1}, Shape{64, 64, 3, 3}, Shape{1, 1, 3, 3}})
    for (const bool b : {false, true})
      for (const TensorDesc& layout : weight_layouts(rig, shape)) {
        INFO(to_string(shape) << " in " << layout.layout.name << (b ? ", with bias" : ""));
        FoldCase one = random_fold(shape, b, random);
        const Folded folded = fold(rig, one, layout), exact = folded_exactly(one);
        CHECK(relative_error(folded.w, exact.w) < tolerance);
        CHECK(relative_error(folded.b, exact.b) < 2e-7);  // a rounded difference
      }
}

}  // namespace

TEST_CASE("folding scales each filter and moves its bias as the normalisation after it does") {
  everywhere([](OpRig& rig) { check_folds(rig, 1e-7); });  // two roundings to float32
}

TEST_CASE("folded weights of 16 bits are rounded to their type") {
  for (const DeviceKind kind : tested_kinds())
    for (const DType type : {DType::bf16, DType::f16}) {
      if (kind == DeviceKind::cpu && type == DType::f16) continue;  // CPUs have no float16
      INFO(to_string(Device{kind, 0}) << " " << to_string(type));
      std::optional<EmulatedBfloat16> emulated;
      if (kind == DeviceKind::cpu && !kernels::has_bfloat16()) emulated.emplace();
      OpRig rig(kind, 1, type);
      check_folds(rig, type == DType::bf16 ? 0x1p-8 : 0x1p-11);  // the largest relative error of one rounding
    }
}

TEST_CASE("a convolution with folded weights gives the result of the normalisation after it") {
  Random random(62, RandomUse::synthetic);
  const Shape x{2, 20, 9, 7}, y{2, 24, 9, 7}, w{24, 20, 3, 3};
  everywhere([&](OpRig& rig) {
    FoldCase one = random_fold(w, false, random);
    const HostTensor images = random_tensor(x, random);
    const auto op =
        rig.context().make_op(kernels::Conv2dForward{rig.desc(x), rig.desc(w), rig.desc(y), {3, 1, 1}, true, false});
    const std::vector<TensorDesc> tensors = op->tensors();
    const auto convolve = [&](const HostTensor& weights, const HostTensor& bias) {
      const DeviceTensor result = rig.poisoned(tensors[2]);
      rig.run(*op, {rig.upload(images, tensors[0]).data(), rig.upload(weights, tensors[1]).data(),
                    rig.upload(bias, rig.plain_full(bias.shape)).data(), result.data()});
      return rig.download(result);
    };
    const Folded folded = fold(rig, one, tensors[1]);
    HostTensor normalised = convolve(one.w, zeros({24}));
    for (std::size_t i = 0; i < normalised.values.size(); ++i) {
      const std::size_t c = i / 63 % 24;
      const double scale = one.weight.values[c] / std::sqrt(one.variance.values[c] + kEps);
      normalised.values[i] = (normalised.values[i] - one.mean.values[c]) * scale + one.bias.values[c];
    }
    CHECK(relative_error(convolve(folded.w, folded.b), normalised) < 1e-6);  // sums of 180 products in float32
  });
}
