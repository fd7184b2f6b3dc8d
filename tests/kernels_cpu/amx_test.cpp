// Tests weight and data gradients that are computed with AMX tiles, for each kind of shape that the kernels handle
// differently.
#include "kernels/conv/cpu_amx.h"
#include "kernels/conv/cpu_own.h"
#include "kernels/device/cpu/announce.h"
#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/layer_calls.h"
#include "kernels_cpu/tagged.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

struct AmxCase {
  Shape x;
  std::int64_t out;
  Window window;
};

struct AmxGradients {
  HostTensor dw, db, dx;
};

CpuOpOptions with(int threads) { return {.threads = threads, .bfloat16 = true}; }

AmxGradients own(const AmxCase& c, const HostTensor& x, const HostTensor& w, const HostTensor& dy, Tag tag,
                 int threads) {
  OpRig rig(DeviceKind::cpu, threads, DType::bf16);
  const TensorDesc xs = with_tag(x.shape, DType::bf16, tag), ys = with_tag(dy.shape, DType::bf16, tag);
  const TensorDesc ws = with_tag(w.shape, DType::f32, Tag::OIhw16i16o), bs = rig.plain_full({c.out});
  const auto weights = make_amx_backward_weights({xs, ys, ws, c.window, true}, with(threads));
  REQUIRE(weights != nullptr);
  const DeviceTensor image = rig.upload(x, xs), gradient = rig.upload(dy, ys), dw = rig.poisoned(ws),
                     db = rig.poisoned(bs);
  rig.run(*weights, {image.data(), gradient.data(), dw.data(), db.data()});
  AmxGradients result{rig.download(dw), rig.download(db), {}};
  const TensorDesc low = with_tag(w.shape, DType::bf16, Tag::OIhw16i16o);
  if (const auto data = make_flipped_backward_data({ys, low, xs, c.window}, with(threads))) {
    const DeviceTensor kernel = rig.upload(w, low), dx = rig.poisoned(xs);
    rig.run(*data, {gradient.data(), kernel.data(), dx.data()});
    result.dx = rig.download(dx);
  }
  return result;
}

}  // namespace

TEST_CASE("gradients with AMX tiles agree with the reference, with the same bits on any number of threads") {
  if (!has_amx()) return mark_skipped("this processor has no AMX");
  Random random(83, RandomUse::synthetic);
  const AmxCase cases[] = {
      {{3, 64, 16, 16}, 64, {3, 1, 1}},  // the taps of a column share a copy; two blocks of each side
      {{2, 32, 32, 32}, 32, {3, 1, 1}}, {{70, 16, 16, 16}, 16, {3, 1, 1}},  // several chunks, several groups
      {{2, 16, 8, 32}, 48, {3, 1, 1}},                                      // odd numbers of blocks
      {{2, 32, 12, 16}, 64, {5, 1, 2}}, {{1, 16, 40, 40}, 16, {3, 1, 0}},   // rows of more than 32 pixels
      {{5, 32, 4, 4}, 64, {3, 1, 1}},   {{3, 48, 8, 8}, 16, {3, 1, 1}},     // permuted copies
      {{7, 32, 7, 7}, 32, {3, 1, 1}},   {{2, 96, 14, 14}, 64, {3, 1, 1}},   // images side by side in a unit
      {{3, 32, 16, 16}, 32, {3, 2, 1}}, {{3, 32, 15, 13}, 32, {3, 2, 1}},  {{4, 32, 8, 8}, 32, {3, 2, 1}},
      {{3, 32, 16, 16}, 64, {1, 2, 0}}, {{3, 64, 6, 5}, 128, {1, 1, 0}},   {{2, 16, 9, 9}, 16, {3, 3, 0}},
      {{2, 16, 1, 1}, 16, {3, 1, 1}},   {{70, 128, 4, 4}, 128, {3, 1, 1}}};  // several groups of images
  int with_data = 0;
  for (const AmxCase& c : cases) {
    const HostTensor x = random_tensor(c.x, random),
                     w = random_tensor({c.out, c.x[1], c.window.kernel.h, c.window.kernel.h}, random);
    const HostTensor dy = random_tensor(window_output(c.x, c.out, c.window), random),
                     b = random_tensor({c.out}, random);
    OpRig oracle(DeviceKind::reference, 1, DType::bf16);
    const LayerResult expected = conv2d(oracle, x, w, &b, dy, c.window, false, Layouts::plain);
    for (const Tag tag : {Tag::nhwc, Tag::nChw16c}) {
      INFO("x " << to_string(c.x) << " out " << c.out << " window " << c.window.kernel.h << " stride "
                << c.window.stride.h << " nhwc " << (tag == Tag::nhwc));
      const AmxGradients alone = own(c, x, w, dy, tag, 1);
      CHECK(relative_error(alone.dw, expected.dw) <= 2e-6);
      CHECK(relative_error(alone.db, expected.db) <= 2e-6);
      if (!alone.dx.values.empty()) {
        ++with_data;
        CHECK(relative_error(alone.dx, expected.dx) <= 1e-4);  // a few values are rounded to their other neighbour
      }
      if (kThreadSanitizer) continue;
      for (const int threads : {2, 3}) {
        const AmxGradients shared = own(c, x, w, dy, tag, threads);
        CHECK(shared.dw.values == alone.dw.values);
        CHECK(shared.db.values == alone.db.values);
        CHECK(shared.dx.values == alone.dx.values);
      }
    }
  }
  CHECK(with_data >= 5);
}

TEST_CASE("weight gradients use AMX tiles if the rows of dy fill them") {
  if (!has_amx()) DP_SKIP("this processor has no AMX");
  OpRig rig(DeviceKind::cpu, 1, DType::bf16);
  const auto uses_tiles = [&](std::int64_t columns, const Window& window) {
    const TensorDesc x{{4, 64, 8, columns}, DType::bf16, {}},
        dw{{64, 64, window.kernel.h, window.kernel.h}, DType::f32, {}};
    const auto op = rig.context().make_op(Conv2dBackwardWeights{x, x, dw, window, false});
    return op->implementation().find("own:amx") != std::string::npos;
  };
  const Window three{3, 1, 1}, one{1, 1, 0};
  for (const std::int64_t columns : {4, 15, 16, 32, 48}) CHECK(uses_tiles(columns, three));
  for (const std::int64_t columns : {17, 24, 31}) CHECK_FALSE(uses_tiles(columns, three));
  CHECK(uses_tiles(24, one));
}

TEST_CASE("AMX kernels reject unsupported channels, layouts and types") {
  if (!has_amx()) return mark_skipped("this processor has no AMX");
  const Window window{3, 1, 1};
  const auto made = [&](std::int64_t in, std::int64_t out, DType type, Tag tag, Tag weights) {
    return make_amx_backward_weights({with_tag({2, in, 8, 8}, type, tag), with_tag({2, out, 8, 8}, type, tag),
                                      with_tag({out, in, 3, 3}, DType::f32, weights), window, false},
                                     with(1)) != nullptr;
  };
  CHECK(made(32, 32, DType::bf16, Tag::nhwc, Tag::OIhw16i16o));
  CHECK_FALSE(made(24, 32, DType::bf16, Tag::nhwc, Tag::OIhw16i16o));
  CHECK_FALSE(made(32, 8, DType::bf16, Tag::nhwc, Tag::OIhw16i16o));
  CHECK_FALSE(made(32, 32, DType::f32, Tag::nhwc, Tag::OIhw16i16o));
  CHECK_FALSE(made(32, 32, DType::bf16, Tag::nchw, Tag::OIhw16i16o));
  CHECK_FALSE(made(32, 32, DType::bf16, Tag::nhwc, Tag::oihw));
}
