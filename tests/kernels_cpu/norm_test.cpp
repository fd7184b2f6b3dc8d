// Batch normalisation and average pools with several thread counts, in layouts that no convolution may produce on this
// processor.
#include "kernels/layer_calls.h"
#include "kernels/norm_calls.h"
#include "kernels_cpu/tagged.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;

constexpr Tag kTags[] = {Tag::nchw, Tag::nhwc, Tag::nChw4c, Tag::nChw8c, Tag::nChw16c};

// Runs every op once, except dx twice: from dz in place, and from dy with y.
std::vector<HostTensor> all_results(OpRig& rig, const NormCase& norm, const kernels::Layout& lies) {
  const std::int64_t channels = norm.x.shape[1];
  const auto vector = [](const Doubles& values) {
    return HostTensor{{static_cast<std::int64_t>(values.size())}, values};
  };
  const Doubles moments = batch_norm_moments(rig, norm.x, lies);
  const Doubles stats = batch_norm_merge(rig, {.channels = channels}, moments);
  const HostTensor y = batch_norm_forward(rig, norm.x, stats, norm.weight, norm.bias, &*norm.addend, true, lies);
  const NormSums sums = batch_norm_backward_sums(rig, norm.dy, &*norm.dy2, norm.x, &y, stats, Dz::over_dy2, lies);
  const NormSums single = batch_norm_backward_sums(rig, norm.dy, nullptr, norm.x, nullptr, stats, Dz::nowhere, lies);
  const auto dx = [&](const HostTensor& dz, const HostTensor* out, const Doubles& of, bool in_place) {
    return batch_norm_backward(rig, dz, norm.x, out, stats, norm.weight, of, in_place, lies);
  };
  return {vector(moments),
          vector(stats),
          y,
          vector(sums.sums),
          sums.dweight,
          sums.dbias,
          sums.dz,
          vector(single.sums),
          dx(sums.dz, nullptr, sums.sums, true),
          dx(norm.dy, &y, sums.sums, false)};
}

}  // namespace

TEST_CASE(
    "batch normalisation agrees with the reference in every layout, with the same bits on any number of threads") {
  Random random(71, RandomUse::synthetic);
  for (const Shape& shape : {Shape{5, 20, 9, 11}, {1, 33, 12, 10}, {19, 1, 30, 20}, {2, 48, 1, 1}, {40, 64, 4, 4}}) {
    const NormCase norm = random_norm(shape, true, true, true, random);
    OpRig oracle(DeviceKind::reference);
    const std::vector<HostTensor> expected = all_results(oracle, norm, oracle.plain(shape));
    for (const Tag tag : kTags) {
      const kernels::Layout lies = with_tag(shape, tag).layout;
      OpRig one(DeviceKind::cpu);
      const std::vector<HostTensor> alone = all_results(one, norm, lies);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        INFO(lies.name << ", result " << i);
        CHECK(relative_error(alone[i], expected[i]) <= 1e-5);
      }
      for (const int threads : {2, 3}) {
        OpRig many(DeviceKind::cpu, threads);
        const std::vector<HostTensor> shared = all_results(many, norm, lies);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          INFO(lies.name << ", result " << i << " on " << threads << " threads");
          CHECK(shared[i].values == alone[i].values);
        }
      }
    }
  }
}

TEST_CASE("additions and average pools keep padding zero in every layout") {
  Random random(72, RandomUse::synthetic);
  const Shape shape{3, 20, 6, 6}, small{3, 20, 3, 3}, cell{3, 20, 1, 1};
  const kernels::Window window{2, 2, 0};
  const HostTensor a = random_tensor(shape, random), b = random_tensor(shape, random);
  OpRig oracle(DeviceKind::reference), rig(DeviceKind::cpu, 2);
  const HostTensor sum = add(oracle, a, b, true, oracle.plain(shape), false);
  for (const Tag tag : kTags) {
    INFO(with_tag(shape, tag).layout.name);
    CHECK(relative_error(add(rig, a, b, true, with_tag(shape, tag).layout, true), sum) <= 1e-6);
    for (const bool global : {false, true}) {
      const Shape& y_shape = global ? cell : small;
      const HostTensor dy = random_tensor(y_shape, random);
      const LayerResult expected = avg_pool2d(oracle, a, dy, global ? nullptr : &window, Layouts::plain);
      const kernels::AvgPool2dForward forward{rig.desc(shape, with_tag(shape, tag).layout), rig.desc(y_shape), window,
                                              global};
      const auto op = rig.context().make_op(forward);
      const DeviceTensor y = rig.poisoned(op->tensors()[1]);
      rig.run(*op, {rig.upload(a, op->tensors()[0]).data(), y.data()});
      CHECK(relative_error(rig.download(y), expected.y) <= 1e-6);
      const auto back = rig.context().make_op(kernels::AvgPool2dBackward{y.desc, forward.x, window, global});
      const DeviceTensor dx = rig.poisoned(forward.x);
      rig.run(*back, {rig.upload(dy, y.desc).data(), dx.data()});
      CHECK(relative_error(rig.download(dx), expected.dx) <= 1e-6);
    }
  }
}
