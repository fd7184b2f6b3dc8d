#include "kernels/low_float.h"

#include <cmath>
#include <limits>

#include "support/catch.h"

using namespace dp::kernels;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Whether `rounded` is nearest to `value` among the 16-bit values. Compares it with both neighbours.
template <typename T>
bool is_nearest(float value, T rounded) {
  const double at = to_float(rounded), error = std::abs(at - value);
  for (const int step : {-1, 1}) {
    const auto bits = static_cast<std::uint16_t>(rounded.bits + step);
    if ((bits ^ rounded.bits) & 0x8000u) continue;  // the neighbour has another sign
    const double other = to_float(T{bits});
    if (!std::isfinite(other)) continue;
    const double further = std::abs(other - value);
    if (further < error || (further == error && (rounded.bits & 1u) != 0)) return false;
  }
  return true;
}

template <typename T>
void every_value_comes_back() {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const T value{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(value);
    const T back = from_float<T>(wide);
    if (std::isnan(wide) ? !std::isnan(to_float(back)) : !(back == value))
      FAIL("bits " << bits << " became " << back.bits);
  }
}

template <typename T>
void the_nearest_is_taken(float largest) {
  std::uint32_t state = 1;
  for (int i = 0; i < 2'000'000; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = std::bit_cast<float>(state);
    if (!std::isfinite(value) || std::abs(value) > largest) continue;
    if (!is_nearest(value, from_float<T>(value))) FAIL(value << " became " << to_float(from_float<T>(value)));
  }
}

}  // namespace

TEST_CASE("every bfloat16 and float16 value survives a conversion to float32 and back") {
  every_value_comes_back<BFloat16>();
  every_value_comes_back<Float16>();
}

TEST_CASE("a float32 is rounded to the nearest bfloat16 or float16, ties to even") {
  the_nearest_is_taken<BFloat16>(3.3895314e38f);
  the_nearest_is_taken<Float16>(65504.f);
  CHECK(to_float(from_float<BFloat16>(1.00390625f)) == 1.f);        // a tie, rounded down to even
  CHECK(to_float(from_float<BFloat16>(1.01171875f)) == 1.015625f);  // a tie, rounded up to even
  CHECK(to_float(from_float<Float16>(2049.f)) == 2048.f);
  CHECK(to_float(from_float<Float16>(2051.f)) == 2052.f);
  CHECK(to_float(from_float<Float16>(0x1p-25f)) == 0.f);
  CHECK(to_float(from_float<Float16>(0x1.8p-24f)) == 0x1p-23f);
  CHECK(to_float(from_float<Float16>(0x1.ffep-15f)) == 0x1p-14f);  // up to the smallest normal
}

TEST_CASE("values beyond the range of bfloat16 or float16 become infinite, and NaN stays NaN") {
  CHECK(to_float(from_float<Float16>(65519.f)) == 65504.f);
  CHECK(to_float(from_float<Float16>(65520.f)) == kInfinity);
  CHECK(to_float(from_float<Float16>(-1e30f)) == -kInfinity);
  CHECK(to_float(from_float<BFloat16>(3.4e38f)) == kInfinity);
  CHECK(to_float(from_float<BFloat16>(-kInfinity)) == -kInfinity);
  for (const float nan : {std::bit_cast<float>(0x7f800001u), std::bit_cast<float>(0xffffffffu)}) {
    CHECK(std::isnan(to_float(from_float<Float16>(nan))));
    CHECK(std::isnan(to_float(from_float<BFloat16>(nan))));
  }
}

static_assert(to_float(from_float<Float16>(1.5f)) == 1.5f && to_float(from_float<BFloat16>(-2.f)) == -2.f);
