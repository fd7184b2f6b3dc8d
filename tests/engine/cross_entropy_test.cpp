// The loss of programs that call forward(), backward() and step().
#include <cmath>
#include <limits>

#include "dp/error.h"
#include "support/catch.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

template <typename T>
Tensor filled(const Shape& shape, DType type, const std::vector<double>& values) {
  Tensor tensor(shape, type);
  for (std::size_t i = 0; i < values.size(); ++i) tensor.span<T>()[i] = static_cast<T>(values[i]);
  return tensor;
}

Tensor labels_of(const std::vector<double>& labels) {
  return filled<std::int32_t>(Shape{static_cast<std::int64_t>(labels.size())}, DType::i32, labels);
}

void check_refused(const Tensor& logits, const Tensor& labels, float smoothing, const std::string& text) {
  try {
    cross_entropy(logits, labels, smoothing);
    FAIL("accepted: " << text);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    CHECK(error.what() == text);
  }
}

}  // namespace

TEST_CASE("cross_entropy is the mean loss with smoothed labels, and its gradient has the type of the logits") {
  const std::vector<double> values{0.5, -1, 2, 1, 1.5, -0.25};  // two rows of three classes
  const std::vector<double> labels{2, 0};
  for (const bool wide : {true, false, true})
    for (const double smoothing : {0.0, 0.25}) {
      const Tensor logits =
          wide ? filled<double>(Shape{2, 3}, DType::f64, values) : filled<float>(Shape{2, 3}, DType::f32, values);
      const Loss loss = cross_entropy(logits, labels_of(labels), static_cast<float>(smoothing));
      double expected = 0;
      std::vector<double> gradient;
      for (std::size_t row = 0; row < 2; ++row) {
        double sum = 0;
        for (std::size_t k = 0; k < 3; ++k) sum += std::exp(values[3 * row + k]);
        for (std::size_t k = 0; k < 3; ++k) {
          const double wanted = smoothing / 3 + (labels[row] == static_cast<double>(k) ? 1 - smoothing : 0);
          const double probability = std::exp(values[3 * row + k]) / sum;
          expected -= wanted * std::log(probability) / 2;
          gradient.push_back((probability - wanted) / 2);
        }
      }
      INFO((wide ? "float64" : "float32") << ", smoothing " << smoothing);
      CHECK(loss.value == Approx(expected).epsilon(1e-5));
      REQUIRE(loss.grad.shape() == Shape{2, 3});
      REQUIRE(loss.grad.dtype() == (wide ? DType::f64 : DType::f32));
      for (std::size_t i = 0; i < 6; ++i)
        CHECK(value_at(loss.grad, static_cast<std::int64_t>(i)) == Approx(gradient[i]).epsilon(1e-4));
    }
}

TEST_CASE("cross_entropy without smoothing is the default, and the largest and the smallest label are valid") {
  const Tensor logits = filled<float>(Shape{2, 3}, DType::f32, {1, 2, 3, 4, 5, 7});
  const Tensor labels = labels_of({0, 2});
  const Loss loss = cross_entropy(logits, labels), same = cross_entropy(logits, labels, 0);
  CHECK(loss.value == same.value);
  CHECK(bit_equal({{"gradient", loss.grad}}, {{"gradient", same.grad}}));
  CHECK(cross_entropy(logits, labels, 0.999f).value > 0);
}

TEST_CASE("cross_entropy names the invalid shape, type, label or smoothing") {
  const Tensor logits(Shape{2, 3});
  const Tensor labels = labels_of({0, 2});
  check_refused(Tensor(), labels, 0, "logits must be (batch, classes), not ()");
  check_refused(Tensor(Shape{3}), labels, 0, "logits must be (batch, classes), not (3,)");
  check_refused(Tensor(Shape{2, 3, 1}), labels, 0, "logits must be (batch, classes), not (2, 3, 1)");
  check_refused(logits.rows(1, 1), labels, 0, "logits must be (batch, classes), not (0, 3)");
  check_refused(logits, Tensor(), 0, "labels must be int32 of shape (2,), not float32 of ()");
  check_refused(logits, Tensor(Shape{2}, DType::i64), 0, "labels must be int32 of shape (2,), not int64 of (2,)");
  check_refused(logits, labels_of({0, 0, 0}), 0, "labels must be int32 of shape (2,), not int32 of (3,)");
  check_refused(logits, Tensor(Shape{2, 1}, DType::i32), 0, "labels must be int32 of shape (2,), not int32 of (2, 1)");
  check_refused(logits, labels_of({0, 3}), 0, "label 3 is not one of 3 classes");
  check_refused(logits, labels_of({-1, 0}), 0, "label -1 is not one of 3 classes");
  for (const float smoothing : {-0.01f, 1.0f, std::numeric_limits<float>::quiet_NaN()})
    check_refused(logits, labels, smoothing, "label_smoothing must be in [0, 1)");
}
