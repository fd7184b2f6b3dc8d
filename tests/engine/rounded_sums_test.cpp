// Gradient reduction in bfloat16 between CPU replicas.
#include "support/rounded_sums.h"

#include "dp/error.h"
#include "engine/step/gradient_sync.h"
#include "support/failing.h"

using namespace dp;
using namespace dp::test;

namespace {

constexpr Reduce kReductions[] = {Reduce::master, Reduce::all_reduce, Reduce::sharded};

std::string refusal(const Model& model, const DataParallelOptions& options) {
  try {
    DataParallel net(model, options);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    return error.what();
  }
  return "";
}

DataParallelOptions rounding(DataParallelOptions options) {
  options.reduce_dtype = DType::bf16;
  return options;
}

}  // namespace

TEST_CASE("bfloat16 reduction: each gradient is rounded, added in float32, and rounded once, in every reduction") {
  for (const int replicas : {2, 3, 4}) check_rounded_sums(small_convnet(), on_cpus(replicas), 13);
  check_rounded_sums(small_convnet(), on_cpus(4), 3);  // one replica has no rows
}

TEST_CASE("bfloat16 reduction: training stays within rounding, and weights and optimizer state stay float32") {
  for (const bool clip : {false, true})
    for (const Reduce reduce : kReductions) {
      DataParallelOptions options = on_cpus(3);
      options.reduce = reduce;
      if (clip) options.clip_grad_norm = 0.5;
      check_rounded_training(residual_net(/*relu=*/false), options, 14);
    }
}

TEST_CASE("bfloat16 reduction: every reduction gives one result, for any buckets, with clipping and accumulation") {
  const Model model = small_convnet(/*dropout=*/true);
  for (const bool clip : {false, true}) {
    std::vector<NamedTensor> expected;
    for (const Reduce reduce : kReductions)
      for (const std::size_t bucket_bytes : {std::size_t{0}, std::size_t{2000}}) {
        DataParallelOptions options = on_cpus(3);
        options.reduce = reduce;
        options.bucket_bytes = bucket_bytes;
        options.grad_accum_steps = 2;
        if (clip) options.clip_grad_norm = 0.5;
        auto course = rounded_course(model, options, DType::bf16, 19);
        course.weights.insert(course.weights.end(), course.state.begin(), course.state.end());
        if (expected.empty()) expected = course.weights;
        INFO("reduce " << static_cast<int>(reduce) << ", bucket " << bucket_bytes << ", clip " << clip);
        CHECK(bit_equal(course.weights, expected));
      }
  }
}

TEST_CASE("bfloat16 reduction: logical shards give the same bits on 1, 2 and 4 replicas") {
  const Model model = residual_net(/*relu=*/true, /*dropout=*/true);
  DataParallelOptions options = on_cpus(1);
  options.logical_shards = 4;
  const auto exact = rounded_course(model, options, DType::f32, 14).weights;
  const auto expected = rounded_course(model, options, DType::bf16, 14).weights;
  CHECK_FALSE(bit_equal(expected, exact));  // one replica reduces its shards like several replicas
  for (const int replicas : {2, 4})
    for (const Reduce reduce : kReductions) {
      DataParallelOptions own = on_cpus(replicas);
      own.logical_shards = 4;
      own.reduce = reduce;
      own.bucket_bytes = 2000;
      CHECK(bit_equal(rounded_course(model, own, DType::bf16, 14).weights, expected));
    }
}

TEST_CASE("bfloat16 reduction: one replica reduces nothing and rounds nothing") {
  const Model model = small_convnet();
  CHECK(bit_equal(rounded_course(model, on_cpus(1), DType::bf16, 8).weights,
                  rounded_course(model, on_cpus(1), DType::f32, 8).weights));
  const DataParallel net(model, rounding(on_cpus(1))), plain(model, on_cpus(1));
  CHECK(net.memory_use(0).total() == plain.memory_use(0).total());
  CHECK_THAT(net.describe_plan(8), Catch::Contains("one replica sums nothing"));
}

TEST_CASE("bfloat16 reduction: memory equals the estimate, and the plan describes the reduction") {
  const Model model = small_convnet();
  for (const int shards : {0, 6}) {
    DataParallelOptions options = rounding(on_cpus(2));
    options.bucket_bytes = 1000;
    options.logical_shards = shards;
    DataParallel net(model, options);
    net.prepare({12});
    const std::size_t estimated = estimate_memory(model, options, {12}).at(1).gradients;
    options.reduce_dtype = DType::f32;
    CHECK(net.memory_use(1).gradients == estimated);
    CHECK(estimated > estimate_memory(model, options, {12}).at(1).gradients);
    CHECK_THAT(net.describe_plan(12), Catch::Contains("gradients are rounded to bfloat16 for their sum"));
    CHECK(DataParallel(model, options).describe_plan(12).find("bfloat16") == std::string::npos);
  }
}

TEST_CASE("bfloat16 reduction: a NaN of one replica survives and skips or ends the step") {
  const Model model = small_convnet();
  for (const Reduce reduce : kReductions)
    for (const OnNonfinite on_nonfinite : {OnNonfinite::skip, OnNonfinite::abort}) {
      const FailEnvironment fail("nan:reduce:dev1:step0");
      DataParallelOptions options = rounding(on_cpus(2));
      options.reduce = reduce;
      options.on_nonfinite = on_nonfinite;
      DataParallel net(model, options);
      const auto origin = net.weights();
      INFO("reduce " << static_cast<int>(reduce));
      if (on_nonfinite == OnNonfinite::abort) {
        CHECK_THROWS_WITH((net.train_step(random_batch(model, 8), Sgd{.lr = 0.1f}), net.take_stats()),
                          Catch::Contains("not finite"));
        continue;
      }
      net.train_step(random_batch(model, 8), Sgd{.lr = 0.1f});
      CHECK(net.take_stats().skipped == 1);
      CHECK(bit_equal(net.weights(), origin));
    }
}

TEST_CASE("bfloat16 reduction: invalid combinations are rejected with the remedy") {
  const Model model = small_convnet();
  CHECK_THAT(refusal(model, rounding(on_reference())), Catch::Contains("float64") && Catch::Contains("remove"));
  DataParallelOptions options = on_cpus(2);
  for (const DType type : {DType::f16, DType::f64, DType::i32}) {
    options.reduce_dtype = type;
    CHECK_THAT(refusal(model, options), Catch::Contains("--reduce-dtype") && Catch::Contains(to_string(type)));
  }
}

TEST_CASE("bfloat16 reduction: each shard has room for the largest bucket, rounded up to 64 bytes") {
  const auto bytes = [](std::int64_t first, std::int64_t second, std::size_t shards) {
    return engine::RoundedGradients::bytes({{{second, second + first}, 1}, {{0, second}, 0}}, shards);
  };
  CHECK(bytes(96, 32, 1) == 192);
  CHECK(bytes(32, 97, 1) == 256);
  CHECK(bytes(1, 1, 3) == 192);
}
