// The comparison functions of the tests detect non-finite values, other shapes and missing tensors.
#include "support/tensor_errors.h"

#include <cmath>

#include "support/catch.h"

using namespace dp;
using namespace dp::test;

namespace {

Tensor tensor(const std::vector<float>& values) {
  Tensor t(Shape{static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), t.data<float>());
  return t;
}

const float kNan = std::nanf(""), kInf = INFINITY;

std::vector<NamedTensor> three(float first, float second, float third) {
  return {{"a", tensor({1, first})}, {"b", tensor({1, second})}, {"c", tensor({1, third})}};
}

}  // namespace

TEST_CASE("relative error: it is relative to the norm, or to the distance from an origin") {
  const Tensor b = tensor({3, 4}), a = tensor({3, 4.5f}), origin = tensor({3, 3});
  CHECK(relative_error(a, b) == Approx(0.1));
  CHECK(relative_error(a, b, &origin) == Approx(0.5));
  CHECK(relative_error(a, b, &b) == Approx(0.5));
  CHECK(relative_error(b, b) == 0);
}

TEST_CASE("relative error: NaN, infinity and another shape are infinitely far on either side") {
  const Tensor good = tensor({1, 2});
  for (const Tensor& bad : {tensor({1, kNan}), tensor({1, kInf}), tensor({1, -kInf}), tensor({1, 2, 0}), tensor({1}),
                            good.reshaped(Shape{2, 1})}) {
    INFO(to_string(bad.shape()));
    CHECK(relative_error(bad, good) == kInfinitelyFar);
    CHECK(relative_error(good, bad) == kInfinitelyFar);
    CHECK(relative_error(good, good, &bad) == kInfinitelyFar);
  }
  CHECK(relative_error(tensor({kInf}), tensor({kInf})) == kInfinitelyFar);
}

TEST_CASE("worst error: a NaN is the worst, whatever its place and the other errors") {
  const auto expected = three(1, 1, 1);
  for (const auto& got : {three(kNan, 5e5f, 2), three(5e5f, kNan, 2), three(5e5f, 2, kNan), three(kNan, kNan, 1)}) {
    const Worst worst = worst_error(got, expected);
    CHECK(worst.error == kInfinitelyFar);
    CHECK(worst.name == (std::isnan(value_at(got[0].second, 1))   ? "a"
                         : std::isnan(value_at(got[1].second, 1)) ? "b"
                                                                  : "c"));
  }
  const Worst finite = worst_error(three(1, 9, 2), expected);
  CHECK(finite.name == "b");
  CHECK(finite.error == Approx(8 / std::sqrt(2.0)));
  CHECK(worst_error(expected, expected).error == 0);
}

TEST_CASE("worst error: missing, surplus, renamed and reshaped tensors are infinitely far") {
  const auto all = three(1, 2, 3);
  auto fewer = all, more = all, renamed = all, reshaped = all;
  fewer.pop_back();
  more.emplace_back("d", tensor({1}));
  renamed[1].first = "x";
  reshaped[2].second = tensor({1, 3, 0});
  for (const auto& other : {fewer, more, renamed, reshaped, std::vector<NamedTensor>{}}) {
    CHECK(worst_error(other, all).error == kInfinitelyFar);
    CHECK(worst_error(all, other).error == kInfinitelyFar);
    CHECK(worst_error(all, all, &other).error == kInfinitelyFar);
    CHECK_FALSE(bit_equal(all, other));
    CHECK_FALSE(bit_equal(other, all));
  }
}

TEST_CASE("bit equality: signs of zero, types and shapes count, and a NaN equals itself") {
  const auto one = [](Tensor t) { return std::vector<NamedTensor>{{"a", std::move(t)}}; };
  CHECK(bit_equal(one(tensor({1, kNan})), one(tensor({1, kNan}))));
  CHECK_FALSE(bit_equal(one(tensor({0.0f})), one(tensor({-0.0f}))));
  CHECK_FALSE(bit_equal(one(tensor({1, 2})), one(tensor({1, 2}).reshaped(Shape{2, 1}))));
  CHECK_FALSE(bit_equal(one(Tensor(Shape{2})), one(Tensor(Shape{1}, DType::f64))));
  CHECK_FALSE(bit_equal(one(Tensor(Shape{1}, DType::i64)), one(Tensor(Shape{1}, DType::f64))));
}

TEST_CASE("larger error: a non-finite value gives infinity on either side") {
  CHECK(larger_error(1, 2) == 2);
  CHECK(larger_error(2, 1) == 2);
  for (const double bad : {std::nan(""), kInfinitelyFar, -kInfinitelyFar}) {
    CHECK(larger_error(bad, 1) == kInfinitelyFar);
    CHECK(larger_error(1, bad) == kInfinitelyFar);
  }
}
