// Which convolutions use Winograd. Our own Winograd, which only some processors use, is called on all.
#include "kernels/conv/cpu_own.h"

#include "kernels/device/cpu/announce.h"
#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/lanes.h"
#include "kernels/layer_calls.h"
#include "kernels_cpu/tagged.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

constexpr Window kSame{3, 1, 1};

bool pays(ConvPass pass, std::int64_t batch, std::int64_t channels, std::int64_t size, bool amx = true) {
  return winograd_pays(pass, {channels, channels, 3, 3}, {batch, channels, size, size}, kSame, amx);
}

struct WinogradCase {
  Shape x;
  std::int64_t out;
  int padding;
  bool bias, relu;
};

LayerResult own_winograd(const WinogradCase& c, const HostTensor& x, const HostTensor& w, const HostTensor& b,
                         const HostTensor& dy, Tag tag, Tag w_tag, int threads) {
  OpRig rig(DeviceKind::cpu, threads);
  const CpuOpOptions options{threads, false};
  const Window window{3, 1, c.padding};
  const TensorDesc xs = with_tag(x.shape, tag), ws = with_tag(w.shape, w_tag), ys = with_tag(dy.shape, tag);
  const auto forward = make_winograd(Conv2dForward{xs, ws, ys, window, c.bias, c.relu}, options);
  const auto data = make_winograd(Conv2dBackwardData{ys, ws, xs, window}, options);
  const auto weights = make_winograd(Conv2dBackwardWeights{xs, ys, ws, window, c.bias}, options);
  REQUIRE((forward && data && weights));
  for (const auto* op : {forward.get(), data.get(), weights.get()}) CHECK(op->implementation() == "own:winograd_4x3");
  const DeviceTensor bias = rig.upload(b, rig.desc(b.shape, rig.plain(b.shape))), db = rig.poisoned(bias.desc);
  const DeviceTensor image = rig.upload(x, xs), kernel = rig.upload(w, ws), gradient = rig.upload(dy, ys);
  const DeviceTensor y = rig.poisoned(ys), dx = rig.poisoned(xs), dw = rig.poisoned(ws);
  rig.run(*forward, {image.data(), kernel.data(), c.bias ? bias.data() : nullptr, y.data()});
  rig.run(*data, {gradient.data(), kernel.data(), dx.data()});
  rig.run(*weights, {image.data(), gradient.data(), dw.data(), c.bias ? db.data() : nullptr});
  LayerResult result{rig.download(y), rig.download(dx), rig.download(dw), {}};
  if (c.bias) result.db = rig.download(db);
  return result;
}

}  // namespace

TEST_CASE("our own Winograd agrees with the reference, with the same bits on any number of threads") {
  Random random(81, RandomUse::synthetic);
  const WinogradCase cases[] = {{{3, 32, 14, 18}, 48, 1, true, true},  {{5, 40, 9, 7}, 33, 1, false, false},
                                {{2, 64, 22, 22}, 64, 0, true, false}, {{130, 16, 4, 4}, 80, 1, false, true},
                                {{1, 5, 1, 3}, 7, 1, true, false},     {{2, 16, 6, 5}, 16, 2, true, true},
                                {{40, 16, 30, 30}, 16, 1, true, false}};  // tiles for two stages of the weight gradient
  for (const WinogradCase& c : cases) {
    const HostTensor x = random_tensor(c.x, random), w = random_tensor({c.out, c.x[1], 3, 3}, random);
    const HostTensor b = random_tensor({c.out}, random);
    const HostTensor dy = random_tensor(window_output(c.x, c.out, {3, 1, c.padding}), random);
    OpRig oracle(DeviceKind::reference);
    const LayerResult expected =
        conv2d(oracle, x, w, c.bias ? &b : nullptr, dy, {3, 1, c.padding}, c.relu, Layouts::plain);
    const std::pair<Tag, Tag> tags[] = {{Tag::nChw16c, Tag::OIhw16i16o}, {Tag::nChw8c, Tag::OIhw8i8o}};
    for (const auto& [tag, w_tag] : tags) {
      if (tag == Tag::nChw8c && kLanes > 8) continue;
      INFO("x " << to_string(c.x) << " padding " << c.padding << " in " << with_tag(c.x, tag).layout.name);
      const LayerResult alone = own_winograd(c, x, w, b, dy, tag, w_tag, 1);
      CHECK(relative_error(alone.y, expected.y) <= 1e-5);
      CHECK(relative_error(alone.dx, expected.dx) <= 1e-5);
      CHECK(relative_error(alone.dw, expected.dw) <= 1e-5);
      if (c.bias) CHECK(relative_error(alone.db, expected.db) <= 1e-5);
      if (kThreadSanitizer) continue;  // it does not see OpenMP's barriers; the backend uses one thread there
      for (const int threads : {2, 3}) {
        const LayerResult shared = own_winograd(c, x, w, b, dy, tag, w_tag, threads);
        CHECK(shared.y.values == alone.y.values);
        CHECK(shared.dx.values == alone.dx.values);
        CHECK(shared.dw.values == alone.dw.values);
        CHECK(shared.db.values == alone.db.values);
      }
    }
  }
}

TEST_CASE("our own Winograd rejects unsupported layouts and windows") {
  const CpuOpOptions options{1, false};
  const Shape x{2, 32, 8, 8}, w{32, 32, 3, 3};
  const TensorDesc blocked = with_tag(x, Tag::nChw16c), weights = with_tag(w, Tag::OIhw16i16o);
  CHECK(make_winograd(Conv2dForward{blocked, weights, blocked, kSame}, options) != nullptr);
  CHECK(make_winograd(Conv2dForward{with_tag(x, Tag::nchw), weights, blocked, kSame}, options) == nullptr);
  CHECK(make_winograd(Conv2dForward{blocked, with_tag(w, Tag::oihw), blocked, kSame}, options) == nullptr);
  CHECK(make_winograd(Conv2dForward{blocked, with_tag(w, Tag::OIhw16o16i), blocked, kSame}, options) == nullptr);
  const TensorDesc half = with_tag({2, 32, 4, 4}, Tag::nChw16c);
  CHECK(make_winograd(Conv2dForward{blocked, weights, half, {3, 2, 1}}, options) == nullptr);
  const TensorDesc large = with_tag({2, 32, 10, 10}, Tag::nChw16c), larger = with_tag({2, 32, 12, 12}, Tag::nChw16c);
  CHECK(make_winograd(Conv2dForward{blocked, weights, large, {3, 1, 2}}, options) != nullptr);
  CHECK(make_winograd(Conv2dForward{blocked, weights, larger, {3, 1, 3}}, options) == nullptr);
  const TensorDesc five = with_tag({32, 32, 5, 5}, Tag::OIhw16i16o);
  CHECK(make_winograd(Conv2dForward{blocked, five, blocked, {5, 1, 2}}, options) == nullptr);
  // Weights for other channels than those of the images.
  const TensorDesc more = with_tag({2, 48, 8, 8}, Tag::nChw16c);
  CHECK(make_winograd(Conv2dForward{more, weights, blocked, kSame}, options) == nullptr);
  CHECK(make_winograd(Conv2dForward{blocked, weights, more, kSame}, options) == nullptr);
  CHECK(make_winograd(Conv2dBackwardData{blocked, with_tag(w, Tag::oihw), blocked, kSame}, options) == nullptr);
  CHECK(make_winograd(Conv2dBackwardWeights{blocked, blocked, with_tag(w, Tag::oihw), kSame, true}, options) ==
        nullptr);
}

TEST_CASE("Winograd is used if its tiles are well filled and enough of them share the transformed weights") {
  for (const ConvPass pass : {ConvPass::forward, ConvPass::data, ConvPass::weights}) {
    CHECK(pays(pass, 64, 64, 32));
    CHECK(pays(pass, 1, 64, 32));
    CHECK(pays(pass, 64, 512, 4));
    CHECK_FALSE(pays(pass, 4, 512, 4));   // four tiles for 512 x 512 weights
    CHECK_FALSE(pays(pass, 64, 64, 5));   // 25 of 64 cells
    CHECK_FALSE(pays(pass, 64, 16, 32));  // few channels
    CHECK_FALSE(pays(pass, 0, 64, 32));
    CHECK_FALSE(winograd_pays(pass, {64, 64, 3, 3}, {64, 64, 32, 32}, {3, 2, 1}, true));
    CHECK_FALSE(winograd_pays(pass, {64, 64, 1, 1}, {64, 64, 32, 32}, {1, 1, 0}, true));
    CHECK_FALSE(winograd_pays(pass, {64, 64, 5, 5}, {64, 64, 32, 32}, {5, 1, 2}, true));
  }
  CHECK(pays(ConvPass::weights, 32, 512, 4));
  CHECK_FALSE(pays(ConvPass::data, 32, 512, 4));
  CHECK_FALSE(pays(ConvPass::weights, 16, 512, 4));
}

TEST_CASE("the limits of the rule for Winograd") {
  // One full tile per image: 2.3 * tiles / (tiles + 36) >= 1.1, with 20 in place of 36 for the weight gradient. Without
  // AMX 28 and 12.
  for (const ConvPass pass : {ConvPass::forward, ConvPass::data}) {
    CHECK(pays(pass, 34, 512, 4));
    CHECK_FALSE(pays(pass, 32, 512, 4));
    CHECK(pays(pass, 26, 512, 4, /*amx=*/false));
    CHECK_FALSE(pays(pass, 25, 512, 4, /*amx=*/false));
  }
  CHECK(pays(ConvPass::weights, 19, 512, 4));
  CHECK_FALSE(pays(ConvPass::weights, 18, 512, 4));
  CHECK(pays(ConvPass::weights, 12, 512, 4, /*amx=*/false));
  CHECK_FALSE(pays(ConvPass::weights, 10, 512, 4, /*amx=*/false));
  for (const ConvPass pass : {ConvPass::forward, ConvPass::data, ConvPass::weights}) {
    const auto limit = [&](std::int64_t out, std::int64_t in, const Window& window) {
      return winograd_pays(pass, {out, in, 3, 3}, {64, out, 32, 32}, window, true);
    };
    CHECK(limit(32, 32, kSame));
    CHECK_FALSE(limit(31, 32, kSame));
    CHECK_FALSE(limit(32, 31, kSame));
    CHECK(limit(32, 32, {3, 1, 0}));
    CHECK_FALSE(limit(32, 32, {3, 1, 2}));
    const auto cells = [&](std::int64_t height, std::int64_t width) {
      return winograd_pays(pass, {64, 64, 3, 3}, {100'000, 64, height, width}, kSame, true);
    };
    CHECK(cells(4, 4));
    CHECK(cells(8, 2));        // half of each tile: 1.15
    CHECK_FALSE(cells(9, 2));  // 18 of 48 cells
    CHECK_FALSE(cells(2, 9));
    CHECK_FALSE(cells(5, 5));
  }
}

TEST_CASE("our own Winograd computes many weight gradients with AMX, and images of 128 channels without") {
  for (const ConvPass pass : {ConvPass::forward, ConvPass::data, ConvPass::weights}) {
    const bool weights = pass == ConvPass::weights;
    CHECK(own_winograd_pays(pass, {256, 256, 3, 3}, true) == weights);
    CHECK(own_winograd_pays(pass, {512, 128, 3, 3}, true) == weights);
    CHECK_FALSE(own_winograd_pays(pass, {255, 256, 3, 3}, true));
    CHECK_FALSE(own_winograd_pays(pass, {512, 127, 3, 3}, true));
    CHECK(own_winograd_pays(pass, {128, 128, 3, 3}, false) != weights);
    CHECK(own_winograd_pays(pass, {255, 256, 3, 3}, false) != weights);
    CHECK_FALSE(own_winograd_pays(pass, {127, 128, 3, 3}, false));
    CHECK_FALSE(own_winograd_pays(pass, {256, 256, 3, 3}, false));
  }
}

TEST_CASE("a weight gradient uses our Winograd for many weights with AMX, and where oneDNN has none") {
  const CpuOpOptions options{1, false, /*fast_convolutions=*/true};
  const auto is_own = [](const HostOp& op) { return op.implementation().starts_with("own:winograd"); };
  const auto gradient = [&](std::int64_t channels) {
    const Shape image{32, channels, 8, 8};
    return make_cpu_op(Conv2dBackwardWeights{any_layout(image), any_layout(image),
                                             any_layout({channels, channels, 3, 3}), kSame, false},
                       options);
  };
  const Shape image{32, 64, 8, 8};
  const auto forward = make_cpu_op(
      Conv2dForward{any_layout(image), any_layout({64, 64, 3, 3}), any_layout(image), kSame, false, false}, options);
  // Ours requires blocks of channels that fill vectors. oneDNN limited to AVX2 chooses smaller ones.
  const auto many = gradient(256);
  INFO(many->implementation() << " in " << many->tensors()[0].layout.name);
  const bool fits = view_of(many->tensors()[0]).block % kLanes == 0;
  CHECK(is_own(*many) == (fits && (has_amx() || is_own(*forward))));
  CHECK(is_own(*gradient(64)) == is_own(*forward));  // oneDNN has Winograd for both or for neither
}

TEST_CASE("convolutions with prescribed layouts run with every algorithm") {
  const bool fast = GENERATE(false, true);
  const CpuOpOptions options{1, false, fast};
  const Shape x{4, 32, 16, 16}, w{64, 32, 3, 3}, y{4, 64, 16, 16};
  const auto free = make_cpu_op(Conv2dForward{any_layout(x), any_layout(w), any_layout(y), kSame, true, true}, options);
  const auto t = free->tensors();
  const auto data = make_cpu_op(Conv2dBackwardData{t[2], any_layout(w), t[0], kSame}, options);
  const auto weights = make_cpu_op(Conv2dBackwardWeights{t[0], t[2], any_layout(w), kSame, true}, options);
  INFO(free->implementation() << " " << data->implementation() << " " << weights->implementation());
  CHECK(data->tensors()[2].layout == t[0].layout);
  CHECK(weights->tensors()[1].layout == t[2].layout);
  // Our own Winograd needs blocks of kLanes channels. With ONEDNN_MAX_CPU_ISA, oneDNN may choose smaller ones.
  if (t[0].layout.name.find(std::to_string(kLanes) + "b") == std::string::npos) return;
  const auto winograd = [](const HostOp& op) { return op.implementation().find("wino") != std::string::npos; };
  CHECK(winograd(*weights));
  CHECK(winograd(*free) == fast);
  CHECK(winograd(*data) == fast);
  if (fast) CHECK(data->tensors()[1].layout == t[1].layout);  // both directions share one weight layout
}
