// The reference's backward of normalisations, average pools and additions against central differences of the
// forward, in float64.
#include <iterator>

#include "kernels/differences.h"
#include "kernels/layer_calls.h"
#include "kernels/norm_calls.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::test;

TEST_CASE("gradients of batch normalisation equal difference quotients through the statistics of all parts") {
  OpRig rig(DeviceKind::reference);
  Random random(63, RandomUse::synthetic);
  for (const std::vector<std::int64_t>& parts : {std::vector<std::int64_t>{4}, {1, 3}, {1, 2, 1}})
    for (const bool relu : {false, true}) {
      INFO(parts.size() << " parts, relu " << relu);
      NormCase norm = random_norm({4, 2, 2, 2}, false, true, true, random);
      while (relu && distance_from_zero(batch_norm(rig, norm, parts, false).y) < 1e-2)  // away from ReLU's kink
        norm = random_norm({4, 2, 2, 2}, false, true, true, random);
      norm.relu = relu;
      HostTensor direction = norm.dy;
      for (std::size_t i = 0; i < direction.values.size(); ++i) direction.values[i] += norm.dy2->values[i];
      const auto loss = [&] { return dot(batch_norm(rig, norm, parts, false).y, direction); };
      const NormResult gradients = batch_norm(rig, norm, parts, false);
      // Not linear: the error is the squared step times the third derivative.
      CHECK(relative_error(gradients.dx, difference_quotients(norm.x, loss)) <= 2e-7);
      CHECK(relative_error(gradients.dweight, difference_quotients(norm.weight, loss)) <= 1e-9);
      CHECK(relative_error(gradients.dbias, difference_quotients(norm.bias, loss)) <= 1e-9);
      CHECK(relative_error(gradients.dz, difference_quotients(*norm.addend, loss)) <= 1e-9);  // the addend's gradient
    }
}

TEST_CASE("gradients of group and layer normalisation equal difference quotients") {
  OpRig rig(DeviceKind::reference);
  Random random(65, RandomUse::synthetic);
  for (const std::int64_t groups : {std::int64_t{1}, std::int64_t{2}, std::int64_t{4}, kernels::kEachPixel})
    for (const bool affine : {false, true}) {
      INFO(groups << " groups, affine " << affine);
      const Shape shape{2, 4, 3, 2};
      GroupNormCase norm{.x = random_tensor(shape, random),
                         .weight = random_tensor({4}, random),
                         .bias = random_tensor({4}, random),
                         .dy = random_tensor(shape, random),
                         .groups = groups,
                         .affine = affine};
      const auto loss = [&] { return dot(group_norm(rig, norm, false).y, norm.dy); };
      const GroupNormResult gradients = group_norm(rig, norm, false);
      // Not linear: the error is the squared step times the third derivative.
      CHECK(relative_error(gradients.dx, difference_quotients(norm.x, loss)) <= 2e-7);
      if (!affine) continue;
      CHECK(relative_error(gradients.dweight, difference_quotients(norm.weight, loss)) <= 1e-9);
      CHECK(relative_error(gradients.dbias, difference_quotients(norm.bias, loss)) <= 1e-9);
    }
}

TEST_CASE("gradients of average pools equal difference quotients") {
  OpRig rig(DeviceKind::reference);
  Random random(64, RandomUse::synthetic);
  const kernels::Window windows[] = {{2, 2, 0}, {3, 2, 1}, {3, 1, 1}, {{2, 3}, {2, 1}, {0, 1}}};
  const Shape adaptive[] = {{2, 2, 1, 1}, {2, 2, 3, 4}, {2, 2, 7, 2}};
  for (std::size_t i = 0; i < std::size(windows) + std::size(adaptive); ++i) {
    const kernels::Window* window = i < std::size(windows) ? &windows[i] : nullptr;
    HostTensor x = random_tensor({2, 2, 5, 6}, random);
    const HostTensor dy =
        random_tensor(window ? window_output(x.shape, 2, *window) : adaptive[i - std::size(windows)], random);
    const auto run = [&] { return avg_pool2d(rig, x, dy, window, Layouts::plain); };
    const HostTensor dx = run().dx;
    CHECK(relative_error(dx, difference_quotients(x, [&] { return dot(run().y, dy); })) <= 1e-9);
  }
}
