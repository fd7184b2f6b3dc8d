// Tests convolutions with channels that do not fill a block of a layout. No op may use oneDNN's reference loops, in any
// layout of the images.
#include <cmath>

#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/layer_calls.h"
#include "kernels_cpu/tagged.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

struct OddChannelsCase {
  Shape x;
  std::int64_t out;
  Window window;
  std::int64_t groups = 1;
};

void check_fast(const HostOp& op) {
  INFO(op.implementation());
  CHECK_FALSE(op.is_fallback());
  CHECK_FALSE(op.implementation().empty());
}

// Runs the three passes as a plan does. The images have the layout of `image`. The ops choose all other layouts.
LayerResult in_layout(const OddChannelsCase& c, const TensorDesc& image, const HostTensor& x, const HostTensor& w,
                      const HostTensor& dy) {
  OpRig rig(DeviceKind::cpu);
  const CpuOpOptions options;
  const auto forward =
      make_cpu_op(Conv2dForward{image, any_layout(w.shape), any_layout(dy.shape), c.window, false, false}, options);
  const auto f = forward->tensors();
  const auto data =
      make_cpu_op(Conv2dBackwardData{any_layout(dy.shape), any_layout(w.shape), image, c.window}, options);
  const auto d = data->tensors();
  const auto weights = make_cpu_op(Conv2dBackwardWeights{image, f[2], any_layout(w.shape), c.window, false}, options);
  const auto g = weights->tensors();
  check_fast(*forward);
  check_fast(*data);
  check_fast(*weights);
  CHECK(d[2].layout == image.layout);
  const DeviceTensor y = rig.poisoned(f[2]), dx = rig.poisoned(d[2]), dw = rig.poisoned(g[2]);
  rig.run(*forward, {rig.upload(x, f[0]).data(), rig.upload(w, f[1]).data(), nullptr, y.data()});
  rig.run(*data, {rig.upload(dy, d[0]).data(), rig.upload(w, d[1]).data(), dx.data()});
  rig.run(*weights, {rig.upload(x, g[0]).data(), rig.upload(dy, g[1]).data(), dw.data(), nullptr});
  return {rig.download(y), rig.download(dx), rig.download(dw), {}};
}

}  // namespace

TEST_CASE("convolutions of few or odd channels use fast kernels and agree with the reference in every layout") {
  Random random(17, RandomUse::synthetic);
  const OddChannelsCase cases[] = {
      {{4, 6, 14, 14}, 16, {5, 1, 0}},   // LeNet's second layer
      {{4, 10, 12, 12}, 20, {5, 1, 0}},  // PyTorch's older MNIST example
      {{2, 20, 16, 16}, 40, {3, 2, 0}},  // no output reads the last row
      {{2, 48, 9, 9}, 6, {1, 1, 0}},     {{3, 3, 8, 8}, 5, {3, 1, 1}},
      {{2, 8, 2, 2}, 8, {7, 1, 3}},  // more padding than image
      {{2, 12, 7, 7}, 100, {3, 2, 1}},   {{2, 5, 14, 14}, 10, {7, 2, 3}},
      {{2, 32, 9, 9}, 32, {3, 1, 1}, 8},  // 4 channels a group, as ResNeXt's first layers
      {{2, 32, 9, 9}, 64, {3, 2, 1}, 4}, {{2, 32, 9, 9}, 32, {3, 1, 1}, 32},
  };
  for (const OddChannelsCase& c : cases) {
    const HostTensor x = random_tensor(c.x, random);
    const HostTensor w = random_tensor({c.out, c.x[1] / c.groups, c.window.kernel.h, c.window.kernel.h}, random);
    const HostTensor dy = random_tensor(window_output(c.x, c.out, c.window), random);
    OpRig oracle(DeviceKind::reference);
    const LayerResult expected = conv2d(oracle, x, w, nullptr, dy, c.window, false, Layouts::plain);
    for (const Tag tag : {Tag::nchw, Tag::nhwc, Tag::nChw8c, Tag::nChw16c}) {
      const TensorDesc image = with_tag(c.x, tag);
      INFO("x " << to_string(c.x) << ", " << c.out << " outputs, " << c.groups << " groups, kernel "
                << c.window.kernel.h << ", stride " << c.window.stride.h << ", in " << image.layout.name);
      const LayerResult result = in_layout(c, image, x, w, dy);
      CHECK(relative_error(result.y, expected.y) <= 1e-6);
      CHECK(relative_error(result.dx, expected.dx) <= 1e-6);
      CHECK(relative_error(result.dw, expected.dw) <= 1e-6);
    }
  }
}

TEST_CASE("bfloat16 weight gradients of small groups use no reference loops, whatever layouts their neighbours chose") {
  const Window window{3, 1, 1};
  const Shape shape{2, 32, 9, 9};
  const auto low = [&](Tag tag) {
    const DnnlDesc md(dims_of(shape), dnnl::memory::data_type::bf16, tag);
    return TensorDesc{shape, DType::bf16, make_layout(md, DType::bf16)};
  };
  for (const std::int64_t groups : {4, 8, 32})
    for (const Tag x : {Tag::nchw, Tag::nhwc, Tag::nChw16c})
      for (const Tag dy : {Tag::nchw, Tag::nhwc, Tag::nChw16c}) {
        const auto op =
            make_cpu_op(Conv2dBackwardWeights{low(x), low(dy), any_layout({32, 32 / groups, 3, 3}), window, false},
                        CpuOpOptions{.bfloat16 = true});
        INFO(groups << " groups, x in " << low(x).layout.name << ", dy in " << low(dy).layout.name);
        CHECK_THAT(op->implementation(), !Catch::Contains("ref"));
      }
}
