// The weight gradient for images with few channels. oneDNN supports it on some processors only; this test calls it on
// all.
#include <cmath>

#include "dp/random.h"
#include "dp/tensor.h"
#include "kernels/conv/cpu_own.h"
#include "kernels_cpu/tagged.h"
#include "support/catch.h"
#include "support/tensor_errors.h"

namespace {

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

Tensor uniform_tensor(const Shape& shape, Random& random) {
  Tensor t(shape);
  for (float& value : t.span<float>()) value = random.uniform(-1, 1);
  return t;
}

void check_thin(const Shape& xs, const Shape& ws, const Window& window, Tag dy_tag, std::int64_t block, Tag w_tag,
                int threads) {
  const auto out = [&](std::int64_t in) { return (in + 2 * window.padding.h - window.kernel.h) / window.stride.h + 1; };
  const Shape ys{xs[0], ws[0], out(xs[2]), out(xs[3])};
  const TensorDesc x{xs, DType::f32, {}}, dy = with_tag(ys, dy_tag), dw = with_tag(ws, w_tag);
  const CpuOpOptions options{threads, false};
  const auto op = make_thin_backward_weights({x, dy, dw, window, true}, options);
  REQUIRE(op != nullptr);
  CHECK(op->implementation() == "own:thin");
  Random random(5, RandomUse::synthetic);
  const Tensor image = uniform_tensor(xs, random), gradient = uniform_tensor(ys, random);
  const std::int64_t blocks = (ws[0] + block - 1) / block, pixels = ys[2] * ys[3];
  const std::int64_t sums = blocks * block * (ws[1] * ws[2] * ws[3] + 1);  // of one thread, the bias included
  CHECK(op->workspace_bytes() == static_cast<std::size_t>(threads * sums) * sizeof(float));
  Tensor blocked(Shape{ys[0] * blocks * block * pixels});
  for (std::int64_t n = 0; n < ys[0]; ++n)
    for (std::int64_t c = 0; c < ys[1]; ++c)
      for (std::int64_t p = 0; p < pixels; ++p)
        blocked.data<float>()[((n * blocks + c / block) * pixels + p) * block + c % block] =
            gradient.data<float>()[(n * ys[1] + c) * pixels + p];
  Tensor result(Shape{static_cast<std::int64_t>(dw.layout.bytes / 4)}), bias(Shape{ws[0]}), plain(ws),
      workspace(Shape{static_cast<std::int64_t>(op->workspace_bytes() / 4 + 1)});
  void* const args[] = {const_cast<void*>(image.raw()), blocked.raw(), result.raw(), bias.raw()};
  op->execute(args, workspace.raw());
  const auto reorder = make_cpu_op(Reorder{dw, {ws, DType::f32, plain_cpu_layout(ws, DType::f32)}}, options);
  Tensor scratch(Shape{static_cast<std::int64_t>(reorder->workspace_bytes() / 4 + 1)});
  void* const reorder_args[] = {result.raw(), plain.raw()};
  reorder->execute(reorder_args, scratch.raw());

  double worst = 0;
  for (std::int64_t o = 0; o < ws[0]; ++o) {
    double expected_bias = 0;
    for (std::int64_t n = 0; n < xs[0]; ++n)
      for (std::int64_t p = 0; p < pixels; ++p) expected_bias += gradient.data<float>()[(n * ys[1] + o) * pixels + p];
    worst = test::larger_error(worst, std::abs(expected_bias - bias.data<float>()[o]));
    for (std::int64_t i = 0; i < ws[1]; ++i)
      for (std::int64_t kh = 0; kh < ws[2]; ++kh)
        for (std::int64_t kw = 0; kw < ws[3]; ++kw) {
          double sum = 0;
          for (std::int64_t n = 0; n < xs[0]; ++n)
            for (std::int64_t h = 0; h < ys[2]; ++h)
              for (std::int64_t w = 0; w < ys[3]; ++w) {
                const std::int64_t r = h * window.stride.h + kh - window.padding.h,
                                   c = w * window.stride.h + kw - window.padding.h;
                if (r < 0 || c < 0 || r >= xs[2] || c >= xs[3]) continue;
                sum += static_cast<double>(image.data<float>()[((n * xs[1] + i) * xs[2] + r) * xs[3] + c]) *
                       gradient.data<float>()[((n * ys[1] + o) * ys[2] + h) * ys[3] + w];
              }
          worst = test::larger_error(worst,
                                     std::abs(sum - plain.data<float>()[((o * ws[1] + i) * ws[2] + kh) * ws[3] + kw]));
        }
  }
  INFO("x " << to_string(xs) << " w " << to_string(ws) << " stride " << window.stride.h << " padding "
            << window.padding.h);
  CHECK(worst < 1e-4);
}

}  // namespace

TEST_CASE("the weight gradient of a convolution with few input channels is correct") {
  for (const int threads : {1, 3}) {
    check_thin({5, 1, 9, 11}, {32, 1, 3, 3}, {3, 1, 0}, Tag::nChw8c, 8, Tag::Ohwi8o, threads);
    check_thin({2, 2, 9, 8}, {20, 2, 3, 3}, {3, 2, 1}, Tag::nChw16c, 16, Tag::oihw, threads);
    check_thin({3, 3, 12, 10}, {8, 3, 7, 7}, {7, 2, 3}, Tag::nChw8c, 8, Tag::hwio, threads);
    check_thin({2, 1, 6, 5}, {10, 1, 5, 5}, {5, 1, 2}, Tag::nChw8c, 8, Tag::oihw, threads);
    check_thin({4, 4, 5, 5}, {16, 4, 1, 1}, {1, 1, 0}, Tag::nChw16c, 16, Tag::oihw, threads);
    check_thin({1, 1, 4, 4}, {8, 1, 7, 7}, {7, 1, 3}, Tag::nChw8c, 8, Tag::oihw, threads);  // no tap is always inside
  }
}

TEST_CASE("the weight gradient for few input channels rejects other layouts and kernels") {
  const auto made = [&](const TensorDesc& x, const TensorDesc& dy, int kernel) {
    const TensorDesc dw{{dy.shape[1], x.shape[1], kernel, kernel}, DType::f32, {}};
    return make_thin_backward_weights({x, dy, dw, {kernel, 1, 0}, true}, {}) != nullptr;
  };
  const Shape xs{2, 8, 9, 9};
  const TensorDesc x{xs, DType::f32, {}};
  const auto dy = [&](int kernel, Tag tag) { return with_tag({2, 16, 10 - kernel, 10 - kernel}, tag); };
  for (int kernel = 1; kernel <= 9; ++kernel) {
    INFO("kernel " << kernel);
    CHECK(made(x, dy(kernel, Tag::nChw8c), kernel) == (kernel % 2 == 1 && kernel < 9));
  }
  CHECK(made(with_tag(xs, Tag::nchw), dy(3, Tag::nChw16c), 3));
  CHECK_FALSE(made(with_tag(xs, Tag::nChw8c), dy(3, Tag::nChw8c), 3));
  CHECK_FALSE(made(with_tag(xs, Tag::nhwc), dy(3, Tag::nChw8c), 3));
  CHECK_FALSE(made(x, dy(3, Tag::nchw), 3));
  CHECK_FALSE(made(x, dy(3, Tag::nChw4c), 3));
  CHECK_FALSE(made(x, with_tag({2, 20, 7, 7}, Tag::nhwc), 3));  // one block of 20 channels
  CHECK_FALSE(made(x, {{2, 16, 7, 7}, DType::f32, {}}, 3));     // any layout
}
