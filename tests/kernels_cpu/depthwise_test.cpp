// Our weight gradient of depthwise convolutions. Plans use it where oneDNN has no kernel of its own; this test calls it
// on every processor.
#include "kernels/conv/cpu_own.h"
#include "kernels/layer_calls.h"
#include "kernels_cpu/tagged.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

struct DepthwiseCase {
  Shape x;
  Window window;
};

TensorDesc of_type(const TensorDesc& desc, DType type) {
  return {desc.shape, type, make_layout(with_type(desc_of(desc.layout), type), type)};
}

struct DepthwiseGradients {
  HostTensor dw, db;
};

DepthwiseGradients run_depthwise(OpRig& rig, const TensorDesc& x_desc, const TensorDesc& dy_desc,
                                 const TensorDesc& dw_desc, const Window& window, const HostTensor& x,
                                 const HostTensor& dy, int threads) {
  const auto op = make_depthwise_backward_weights({x_desc, dy_desc, dw_desc, window, true}, {.threads = threads});
  REQUIRE(op != nullptr);
  CHECK(op->implementation() == "own:depthwise");
  const auto tensors = op->tensors();
  const DeviceTensor dw = rig.poisoned(tensors[2]), db = rig.poisoned(rig.plain_full({x.shape[1]}));
  rig.run(*op, {rig.upload(x, tensors[0]).data(), rig.upload(dy, tensors[1]).data(), dw.data(), db.data()});
  return {rig.download(dw), rig.download(db)};
}

}  // namespace

TEST_CASE("the weight gradient of a depthwise convolution agrees with the reference in every layout") {
  Random random(23, RandomUse::synthetic);
  const DepthwiseCase cases[] = {
      {{2, 32, 9, 9}, {5, 1, 2}},
      {{3, 24, 8, 7}, {5, 2, 2}},    // half a block
      {{2, 37, 6, 6}, {3, 1, 1}},    // one channel beyond the blocks
      {{2, 16, 3, 3}, {7, 1, 3}},    // no tap is always inside
      {{2, 20, 14, 13}, {9, 2, 4}},  // more taps than are summed at once
      {{2, 8, 20, 20}, {13, 1, 6}},
      {{1, 3, 5, 5}, {1, 1, 0}},
      {{2, 16, 12, 11}, {.kernel = {2, 5}, .stride = {2, 1}, .padding = {0, 2}}},
      {{2, 16, 12, 11}, {.kernel = {3, 5}, .stride = {1, 3}, .padding = {2, 3}, .dilation = {2, 3}}},
      {{2, 16, 7, 8}, {.kernel = {4, 4}, .stride = {1, 1}, .padding = {1, 1}, .more_behind = {1, 1}}},
  };
  for (const DepthwiseCase& c : cases) {
    const std::int64_t channels = c.x[1];
    const Shape ws{channels, 1, c.window.kernel.h, c.window.kernel.w};
    const HostTensor x = random_tensor(c.x, random), w = random_tensor(ws, random),
                     b = random_tensor({channels}, random),
                     dy = random_tensor(window_output(c.x, channels, c.window), random);
    OpRig rig(DeviceKind::cpu), oracle(DeviceKind::reference);
    const LayerResult expected = conv2d(oracle, x, w, &b, dy, c.window, false, Layouts::plain);
    for (const Tag x_tag : {Tag::nchw, Tag::nhwc, Tag::nChw4c, Tag::nChw8c, Tag::nChw16c})
      for (const Tag dy_tag : {Tag::any, Tag::nhwc, Tag::nChw16c}) {
        const TensorDesc x_desc = with_tag(c.x, x_tag);
        const TensorDesc dy_desc = dy_tag == Tag::any ? any_layout(dy.shape) : with_tag(dy.shape, dy_tag);
        INFO("x " << to_string(c.x) << " in " << x_desc.layout.name << ", window " << c.window.kernel.h << "x"
                  << c.window.kernel.w << ", dy in " << dy_desc.layout.name);
        const DepthwiseGradients one = run_depthwise(rig, x_desc, dy_desc, any_layout(ws), c.window, x, dy, 1);
        CHECK(relative_error(one.dw, expected.dw) <= 1e-6);
        CHECK(relative_error(one.db, expected.db) <= 1e-6);
        const DepthwiseGradients three = run_depthwise(rig, x_desc, dy_desc, any_layout(ws), c.window, x, dy, 3);
        CHECK(three.dw.values == one.dw.values);
        CHECK(three.db.values == one.db.values);
      }
  }
}

TEST_CASE("the weight gradient of a depthwise convolution is written in the layout of the weights") {
  Random random(24, RandomUse::synthetic);
  const Window window{5, 1, 2};
  const Shape shape{2, 20, 9, 9}, ws{20, 1, 5, 5};
  const HostTensor x = random_tensor(shape, random), dy = random_tensor(shape, random);
  OpRig rig(DeviceKind::cpu);
  const TensorDesc image = with_tag(shape, Tag::nChw16c);
  const DepthwiseGradients plain = run_depthwise(rig, image, image, any_layout(ws), window, x, dy, 2);
  const DnnlDesc blocks({20, 1, 1, 5, 5}, dnnl::memory::data_type::f32, Tag::Goihw16g);
  const DepthwiseGradients blocked =
      run_depthwise(rig, image, image, {ws, DType::f32, make_layout(blocks, DType::f32)}, window, x, dy, 2);
  CHECK(blocked.dw.values == plain.dw.values);
}

TEST_CASE("the weight gradient of a depthwise convolution reads bfloat16 and sums in float32") {
  Random random(25, RandomUse::synthetic);
  const Window window{5, 2, 2};
  const Shape xs{2, 24, 9, 9}, ws{24, 1, 5, 5}, ys = window_output(xs, 24, window);
  OpRig rig(DeviceKind::cpu);
  for (const Tag tag : {Tag::nhwc, Tag::nChw16c}) {
    const TensorDesc x_desc = of_type(with_tag(xs, tag), DType::bf16),
                     dy_desc = of_type(with_tag(ys, tag), DType::bf16);
    const HostTensor x = rig.download(rig.upload(random_tensor(xs, random), x_desc)),
                     dy = rig.download(rig.upload(random_tensor(ys, random), dy_desc));
    const DepthwiseGradients low = run_depthwise(rig, x_desc, dy_desc, any_layout(ws), window, x, dy, 2);
    const DepthwiseGradients full =
        run_depthwise(rig, with_tag(xs, tag), with_tag(ys, tag), any_layout(ws), window, x, dy, 2);
    INFO(x_desc.layout.name);
    CHECK(low.dw.values == full.dw.values);
    CHECK(low.db.values == full.db.values);
  }
}

TEST_CASE("the weight gradient of a depthwise convolution refuses other convolutions") {
  const auto made = [](std::int64_t in, std::int64_t out, std::int64_t per_group) {
    const Conv2dBackwardWeights d{
        any_layout({2, in, 9, 9}), any_layout({2, out, 9, 9}), any_layout({out, per_group, 5, 5}), {5, 1, 2}, false};
    return make_depthwise_backward_weights(d, {}) != nullptr;
  };
  CHECK(made(16, 16, 1));
  CHECK_FALSE(made(16, 32, 1));  // two outputs a channel
  CHECK_FALSE(made(16, 16, 2));
  CHECK_FALSE(made(16, 16, 16));
}

TEST_CASE("plans use our weight gradient of depthwise convolutions where oneDNN multiplies matrices") {
  const auto implementation = [](int kernel, DType type) {
    TensorDesc image = of_type(with_tag({2, 32, 14, 14}, Tag::nChw16c), type);
    return make_cpu_op(
               Conv2dBackwardWeights{image, image, any_layout({32, 1, kernel, kernel}), {kernel, 1, kernel / 2}, true},
               CpuOpOptions{.bfloat16 = true})
        ->implementation();
  };
  CHECK(implementation(5, DType::f32) == "own:depthwise");
  CHECK(implementation(7, DType::f32) == "own:depthwise");
  CHECK_THAT(implementation(5, DType::bf16), Catch::Contains("own:depthwise"));
}
