// Which tensors of a file a model loads, and what is reported about the rest.
#include <limits>

#include "engine/train/restore.h"
#include "support/catch.h"
#include "train/expect_error.h"

namespace {

using dp::ErrorCode;
using dp::NamedTensors;
using dp::Shape;
using dp::Tensor;
using dp::test::expect_error;

NamedTensors own() {
  NamedTensors tensors;
  tensors.emplace_back("a.weight", Tensor(Shape{2, 3}));
  tensors.emplace_back("a.bias", Tensor(Shape{2}));
  return tensors;
}

TEST_CASE("strict loading names every tensor that does not fit") {
  CHECK(dp::fitting(own(), own(), "f", "", nullptr).size() == 2);
  NamedTensors given;
  given.emplace_back("a.weight", Tensor(Shape{3, 2}));
  given.emplace_back("b.weight", Tensor(Shape{1}));
  expect_error(
      ErrorCode::data,
      {"'f'", "'a.weight' is (3, 2), not (2, 3)", "'b.weight' is not in the model", "'a.bias' is missing", "do so"},
      [&] { dp::fitting(own(), given, "f", "do so", nullptr); });
  given = own();
  given[1].second = Tensor(Shape{2}, dp::DType::f64);
  expect_error(ErrorCode::data, {"'a.bias' is float64, not float32"},
               [&] { dp::fitting(own(), given, "f", "", nullptr); });
}

TEST_CASE("partial loading loads the tensors that fit and reports the rest") {
  NamedTensors given = own();
  given[0].second = Tensor(Shape{2, 4});
  std::string said;
  const dp::Notice notice = [&](const std::string& text) { said = text; };
  const NamedTensors taken = dp::fitting(own(), given, "f", "", &notice);
  REQUIRE(taken.size() == 1);
  CHECK(taken[0].first == "a.bias");
  CHECK(said.find("1 of 2") != std::string::npos);
  CHECK(said.find("'a.weight' is (2, 4), not (2, 3)") != std::string::npos);
  given.clear();
  given.emplace_back("c", Tensor(Shape{2}));
  expect_error(ErrorCode::data, {"no tensor fits"}, [&] { dp::fitting(own(), given, "f", "", &notice); });
}

TEST_CASE("a tensor name that occurs twice is rejected") {
  NamedTensors given = own();
  given.push_back(given[0]);
  expect_error(ErrorCode::data, {"'a.weight' is in the file twice"},
               [&] { dp::fitting(own(), given, "f", "", nullptr); });
}

TEST_CASE("a long list of faults is cut") {
  NamedTensors given = own();
  for (int i = 0; i < 1000; ++i) given.emplace_back("x" + std::to_string(i), Tensor(Shape{1}));
  expect_error(ErrorCode::data, {"'x7'", "and 992 more"}, [&] { dp::fitting(own(), given, "f", "", nullptr); });
}

TEST_CASE("tensors with NaN or Inf are found by name") {
  NamedTensors tensors = own();
  dp::require_finite(tensors);
  tensors[1].second.data<float>()[1] = std::numeric_limits<float>::infinity();
  expect_error(ErrorCode::nonfinite, {"'a.bias'"}, [&] { dp::require_finite(tensors); });
}

}  // namespace
