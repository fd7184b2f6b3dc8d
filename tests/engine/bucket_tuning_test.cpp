#include "engine/step/bucket_tuning.h"

#include <cmath>

#include "engine/plan/plan.h"
#include "support/catch.h"

using dp::engine::bucket_bytes_for;
using dp::engine::fit_cost;

namespace {

constexpr std::size_t kMebi = std::size_t{1} << 20;

// The parameters of one layer of 1024 x 1536 float32 weights: 6 MiB.
dp::engine::ParameterTable six_mebibytes(bool bias) {
  dp::ModelBuilder m("one_layer", dp::Shape{1024});
  const dp::Model model = m.build(m.linear("fc", m.input(), {.out_features = 1536, .bias = bias}));
  auto context = dp::kernels::backend(dp::DeviceKind::cpu).open({dp::DeviceKind::cpu, 0}, {});
  const dp::engine::NormTable norms(model);
  return {model, dp::engine::Plan(model, *context, {.batch = 2}, nullptr, norms).parameter_layouts(), dp::DType::f32};
}

}  // namespace

TEST_CASE("the cost of a reduction is fitted to a small and a large one") {
  const double constant = 18e-6, rate = 370e9;
  const auto seconds = [&](std::size_t bytes) { return constant + static_cast<double>(bytes) / rate; };
  const auto cost = fit_cost(64 << 10, seconds(64 << 10), 16 * kMebi, seconds(16 * kMebi));
  CHECK(cost.constant == Approx(constant));
  CHECK(cost.bytes_per_second == Approx(rate));
  CHECK(bucket_bytes_for(cost) == 7 * kMebi);  // 6.4 MiB transfer in the time of the constant
}

TEST_CASE("the bucket size is between 1 and 25 MiB, whatever was measured") {
  CHECK(bucket_bytes_for({30e-6, 12e9}) == kMebi);
  CHECK(bucket_bytes_for({1e-3, 400e9}) == 25 * kMebi);
  CHECK(bucket_bytes_for(fit_cost(1, 2e-5, 1000, 1e-5)) == 25 * kMebi);  // the larger transfer was faster
  CHECK(bucket_bytes_for(fit_cost(1000, 1e-9, 2000, 1e-3)) == kMebi);    // the constant is zero
}

TEST_CASE("the bucket size is tuned only for networks of more than 6 MiB") {
  const auto just_six = six_mebibytes(false), more = six_mebibytes(true);
  REQUIRE(just_six.bytes() == 6 * kMebi);
  CHECK_FALSE(dp::engine::worth_tuning(just_six));
  CHECK(dp::engine::worth_tuning(more));
  dp::DataParallelOptions options;
  options.devices = dp::gpus({0, 1});
  const auto count = [&](const auto& table) { return automatic_buckets(options, table, 64 * kMebi).size(); };
  CHECK(count(just_six) == 1);
  CHECK(count(more) == 2);  // its last bucket is limited, but holds at least one parameter
}
