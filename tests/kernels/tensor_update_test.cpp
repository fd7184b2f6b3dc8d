// The ops of optimizers that compute with whole tensors: LAMB and Muon.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/everywhere.h"
#include "kernels/scalar_calls.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;
using kernels::StepResults;
using kernels::TensorSegment;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The reference's error, and that of float32 after five iterations, of which each multiplies errors by up to 3.4.
double tolerance(OpRig& rig) { return rig.kind() == DeviceKind::reference ? 1e-12 : 2e-5; }

HostTensor orthogonalized(OpRig& rig, const HostTensor& x) {
  const DeviceTensor matrix = upload_plain(rig, x);
  rig.run(*rig.context().make_op(kernels::Orthogonalize{x.shape[0], x.shape[1]}), {matrix.data()});
  return rig.download_raw(matrix);
}

// What the iterations make of a singular value.
double mapped(double value) {
  const auto [a, b, c] = kernels::kNewtonSchulz;
  for (int step = 0; step < kernels::kNewtonSchulzSteps; ++step)
    value = a * value + b * std::pow(value, 3) + c * std::pow(value, 5);
  return value;
}

template <typename T>
std::unique_ptr<kernels::Buffer> uploaded(OpRig& rig, const std::vector<T>& values) {
  return rig.upload_bytes(values.data(), values.size() * sizeof(T));
}

struct Passed {
  HostTensor weights, direction;
  std::vector<double> partials;
  StepResults results;
};

// Both passes over the segments. Elements outside of them are NaN in the weights and directions that are passed.
Passed passes(OpRig& rig, const Optimizer& optimizer, const HostTensor& w, const HostTensor& g,
              const std::vector<TensorSegment>& segments, const std::vector<double>& ratios,
              const std::vector<std::uint8_t>& groups, const kernels::UpdateInputs& update, const StepResults& before) {
  const kernels::UpdateKind kind = kernels::kind_of(optimizer);
  const std::int64_t count = w.shape.numel();
  const DeviceTensor weights = upload_plain(rig, w), gradients = upload_plain(rig, g),
                     state = upload_plain(rig, zeros({2 * count})), direction = rig.poisoned(weights.desc);
  const kernels::StepInputs inputs{.update = update};
  std::vector<double> partials(2 * segments.size(), kNaN);
  const auto list = uploaded(rig, segments), map = uploaded(rig, groups), factors = uploaded(rig, ratios),
             sums = uploaded(rig, partials), step = rig.upload_bytes(&inputs, sizeof inputs),
             results = rig.upload_bytes(&before, sizeof before);
  const auto parts = static_cast<std::int64_t>(segments.size());
  rig.run(*rig.context().make_op(kernels::UpdateDirection{parts, kind, count}),
          {weights.data(), gradients.data(), state.data(), map->data(), step->data(), results->data(), list->data(),
           direction.data(), sums->data()});
  rig.run(*rig.context().make_op(kernels::ApplyDirection{parts, kind, {}}),
          {weights.data(), direction.data(), map->data(), step->data(), results->data(), list->data(), factors->data(),
           nullptr});
  Passed passed{rig.download_raw(weights), rig.download_raw(direction), partials, {}};
  rig.download_bytes(passed.partials.data(), *sums, passed.partials.size() * sizeof(double));
  rig.download_bytes(&passed.results, *results, sizeof passed.results);
  return passed;
}

}  // namespace

TEST_CASE("a matrix is orthogonalised as by the reference, whatever its shape") {
  Random random(31, RandomUse::synthetic);
  OpRig oracle(DeviceKind::reference);
  for (const Shape& shape : {Shape{16, 36}, Shape{36, 16}, Shape{20, 20}, Shape{1, 30}, Shape{30, 2}, Shape{1, 1},
                             Shape{130, 70}, Shape{70, 131}, Shape{64, 576}, Shape{5, 1027}}) {
    const HostTensor x = random_tensor(shape, random), expected = orthogonalized(oracle, x);
    everywhere([&](OpRig& rig) {
      INFO(shape[0] << " x " << shape[1]);
      CHECK(relative_error(orthogonalized(rig, x), expected) <= tolerance(rig));
    });
  }
}

TEST_CASE("each singular value is mapped by the polynomial") {
  for (const Shape& shape : {Shape{3, 7}, Shape{7, 3}}) {
    const std::vector<double> values{3, -0.5, 1};
    HostTensor x = zeros(shape), expected = zeros(shape);
    const double norm = std::sqrt(9 + 0.25 + 1);
    for (std::int64_t i = 0; i < 3; ++i) {
      const auto at = static_cast<std::size_t>(i * shape[1] + (i + 1) % 3), k = static_cast<std::size_t>(i);
      x.values[at] = values[k];
      expected.values[at] = mapped(values[k] / norm);
    }
    CHECK(mapped(3 / norm) == Approx(1).margin(0.3));
    everywhere([&](OpRig& rig) { CHECK(relative_error(orthogonalized(rig, x), expected) <= tolerance(rig)); });
  }
}

TEST_CASE("a matrix of zeros stays zero, a tiny one is divided by 1e-7, and NaN spreads") {
  HostTensor tiny = zeros({4, 6}), bad = zeros({4, 6});
  tiny.values[2] = 1e-9, bad.values[3] = kNaN;
  everywhere([&](OpRig& rig) {
    for (const double value : orthogonalized(rig, zeros({4, 6})).values) CHECK(value == 0);
    CHECK(orthogonalized(rig, tiny).values[2] == Approx(mapped(0.01)).epsilon(1e-5));
    CHECK(std::isnan(orthogonalized(rig, bad).values[3]));
  });
}

TEST_CASE("the trust ratio of a tensor is the quotient of its norms, and 1 if one is zero") {
  // Tensors of two, no, one, one and 1500 segments.
  std::vector<double> partials{9, 1, 16, 3, 0, 4, 4, 0};
  std::vector<std::int64_t> first{0, 2, 2, 3, 4, 1504};
  double weights = 0, directions = 0;
  Random random(32, RandomUse::synthetic);
  for (int i = 0; i < 1500; ++i) {
    partials.push_back(random.uniform()), weights += partials.back();
    partials.push_back(random.uniform()), directions += partials.back();
  }
  const std::vector<double> expected{2.5, 1, 1, 1, std::sqrt(weights / directions)};
  everywhere([&](OpRig& rig) {
    std::vector<double> ratios(expected.size(), kNaN);
    const auto sums = uploaded(rig, partials), begins = uploaded(rig, first), result = uploaded(rig, ratios);
    rig.run(*rig.context().make_op(kernels::TrustRatios{5}), {sums->data(), begins->data(), result->data()});
    rig.download_bytes(ratios.data(), *result, ratios.size() * sizeof(double));
    for (std::size_t i = 0; i < ratios.size(); ++i) CHECK(ratios[i] == Approx(expected[i]).epsilon(1e-12));
  });
}

TEST_CASE("LAMB's segments have their own sums, ratios and groups, and what is between them stays") {
  Random random(33, RandomUse::synthetic);
  const std::vector<TensorSegment> segments{{0, 1024, 1}, {1024, 17, 1}, {1056, 992, 0}, {2048, 5, 0}};
  const std::int64_t count = 2064;
  std::vector<std::uint8_t> groups(static_cast<std::size_t>(count / kernels::kGroupElements), 2);
  std::fill_n(groups.begin(), 66, std::uint8_t{0});  // the first tensor
  const std::vector<double> ratios{100, 0.5};
  const HostTensor w = random_tensor({count}, random), g = random_tensor({count}, random);
  const Lamb lamb{.lr = 0.1f, .weight_decay = 0.25f};
  kernels::UpdateInputs update = update_inputs(lamb);
  update.groups[2] = {.lr = 0.5f, .weight_decay = 0};  // without decay there is no ratio
  everywhere([&](OpRig& rig) {
    const Passed passed = passes(rig, lamb, w, g, segments, ratios, groups, update, {});
    const double close = rig.kind() == DeviceKind::reference ? 1e-12 : 2e-6;
    std::vector<bool> updated(static_cast<std::size_t>(count));
    for (std::size_t s = 0; s < segments.size(); ++s) {
      double squares[2] = {};
      for (std::int64_t i = segments[s].begin; i < segments[s].begin + segments[s].count; ++i) {
        const auto at = static_cast<std::size_t>(i);
        updated[at] = true;
        const bool first = s < 2;
        // In the first update the averages are the gradient and its square.
        const double u =
            g.values[at] / (std::abs(g.values[at]) + static_cast<double>(lamb.eps)) + (first ? 0.25 * w.values[at] : 0);
        CHECK(passed.direction.values[at] == Approx(u).epsilon(1e-5).margin(1e-6));
        const double rate = first ? static_cast<double>(0.1f) * 0.5 : 0.5;
        CHECK(passed.weights.values[at] ==
              Approx(w.values[at] - rate * passed.direction.values[at]).epsilon(close).margin(close));
        squares[0] += w.values[at] * w.values[at];
        squares[1] += passed.direction.values[at] * passed.direction.values[at];
      }
      CHECK(passed.partials[2 * s] == Approx(squares[0]).epsilon(1e-12));
      CHECK(passed.partials[2 * s + 1] == Approx(squares[1]).epsilon(1e-12));
    }
    for (std::size_t i = 0; i < updated.size(); ++i)
      if (!updated[i]) CHECK((passed.weights.values[i] == w.values[i] && std::isnan(passed.direction.values[i])));
  });
}

TEST_CASE("Muon moves matrices by the momentum with their factor, other parameters as AdamW does") {
  Random random(34, RandomUse::synthetic);
  const HostTensor w = random_tensor({48}, random), g = random_tensor({48}, random);
  for (const bool nesterov : {false, true})
    for (const bool match_rms : {false, true}) {
      const Muon muon{
          .lr = 0.5f, .momentum = 0.75f, .nesterov = nesterov, .match_rms = match_rms, .weight_decay = 0.5f};
      const std::vector<TensorSegment> segments{{0, 16, 0, {8, 2}}, {16, 16, 1, {2, 8}}, {32, 16, 2}};
      const double factors[] = {match_rms ? 0.2 * std::sqrt(8.0) : 2, match_rms ? 0.2 * std::sqrt(8.0) : 1, 1};
      everywhere([&](OpRig& rig) {
        INFO("nesterov " << nesterov << " match_rms " << match_rms);
        const Passed passed =
            passes(rig, muon, w, g, segments, {7}, std::vector<std::uint8_t>(3), update_inputs(muon), {});
        for (std::size_t i = 0; i < 48; ++i) {
          const double m = 0.25 * g.values[i], sign = g.values[i] / (std::abs(g.values[i]) + 1e-8);
          const double u = i >= 32 ? sign : nesterov ? 0.75 * m + 0.25 * g.values[i] : m;
          CHECK(passed.direction.values[i] == Approx(u).epsilon(1e-5));
          CHECK(passed.weights.values[i] ==
                Approx(0.75 * w.values[i] - 0.5 * factors[i / 16] * u).epsilon(1e-5).margin(1e-6));
        }
      });
    }
}

TEST_CASE("a skipped step changes no weight, and a direction that is not finite is reported") {
  Random random(35, RandomUse::synthetic);
  const HostTensor w = random_tensor({64}, random);
  HostTensor g = random_tensor({64}, random);
  g.values[40] = kNaN;
  StepResults skip;
  skip.skip = 1;
  for (const Optimizer& optimizer : {Optimizer(Lamb{}), Optimizer(Muon{})})
    everywhere([&](OpRig& rig) {
      const auto run = [&](const StepResults& before) {
        return passes(rig, optimizer, w, g, segments_of(64, {4, 16}), {1}, std::vector<std::uint8_t>(4),
                      update_inputs(optimizer), before);
      };
      const Passed skipped = run(skip);
      CHECK(skipped.weights.values == w.values);
      CHECK(skipped.results.grad_nonfinite == 0);
      CHECK(run({}).results.grad_nonfinite == 1);
    });
}

TEST_CASE("ops of one kind of optimizer refuse the other kind") {
  OpRig rig(DeviceKind::reference);
  const auto refused = [&](const kernels::OpDesc& desc) { CHECK_THROWS_AS(rig.context().make_op(desc), Error); };
  refused(kernels::OptimizerUpdate{.count = 1, .kind = kernels::kind_of(Lamb{})});
  refused(kernels::UpdateDirection{.count = 1, .kind = kernels::kind_of(AdamW{})});
  refused(kernels::ApplyDirection{.count = 1, .kind = kernels::kind_of(AdamW{})});
  refused(kernels::Orthogonalize{.rows = 0, .columns = 3});
}
