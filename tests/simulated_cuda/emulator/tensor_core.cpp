#include "simulated_cuda/emulator/tensor_core.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "simulated_cuda/simulation.h"

namespace dp::simt {
namespace {

constexpr int kNone = -126;          // the exponent of a zero
constexpr int kNotFinite = 1 << 20;  // larger than the exponent of any product
constexpr int kSmallest = -100, kLargest = 126;

using Result = float[16][8];
using Numbers = int[16][8];

void exponents_of(const float* values, int count, int smallest, int* exponents) {
  for (int i = 0; i < count; ++i) {
    const int bits = std::bit_cast<std::int32_t>(values[i]) & 0x7fffffff;
    const int field = bits >> 23;
    const int finite = bits == 0 ? kNone : std::max(field - 127, smallest);
    exponents[i] = field == 0xff ? kNotFinite : finite;
  }
}

float power_of_two(int exponent) { return std::bit_cast<float>((exponent + 127) << 23); }

// Truncates. Exact except for results below float32's normal numbers.
float cut_off(double value) {
  constexpr std::uint64_t kBehindFloat = (std::uint64_t{1} << 29) - 1;
  return static_cast<float>(std::bit_cast<double>(std::bit_cast<std::uint64_t>(value) & ~kBehindFloat));
}

void add_in_order(const float (&a)[16], const float (&b)[16][8], float (&d)[8]) {
  float sum[8] = {};
  for (int k = 0; k < 16; ++k)
    for (int column = 0; column < 8; ++column) sum[column] += a[k] * b[k][column];
  for (int column = 0; column < 8; ++column) d[column] += sum[column];
}

// Raises `top` from the accumulators' exponents to the largest exponent of all summands.
void raise(const int (&a)[16][16], const Numbers& b, int first, int count, Numbers& top) {
  for (int row = 0; row < 16; ++row) {
    int largest[8];
    std::copy(std::begin(top[row]), std::end(top[row]), largest);
    for (int k = first; k < first + count; ++k)
      for (int column = 0; column < 8; ++column) largest[column] = std::max(largest[column], a[row][k] + b[k][column]);
    std::copy(std::begin(largest), std::end(largest), top[row]);
  }
}

// In units of the last kept bit. Each product is less than 4 * 2^top, so the sum of 16 products does not overflow.
void add_products(const MmaOperands& m, int first, int count, const Result& per_unit, Numbers& sums) {
  for (int row = 0; row < 16; ++row) {
    int sum[8] = {};
    float scale[8];
    std::copy(std::begin(per_unit[row]), std::end(per_unit[row]), scale);
    for (int k = first; k < first + count; ++k)
      for (int column = 0; column < 8; ++column)
        sum[column] += static_cast<int>(m.a[row][k] * m.b[k][column] * scale[column]);
    std::copy(std::begin(sum), std::end(sum), sums[row]);
  }
}

struct Exponents {
  int a[16][16];
  Numbers b;
};

// d += the `count` products from `first` on. Returns false without any change if a summand is outside the modelled
// range.
bool add_at_once(const MmaOperands& m, const Exponents& exponents, int first, int count, int bits, Result& d) {
  Numbers top, sums;
  exponents_of(&d[0][0], 16 * 8, kNone, &top[0][0]);
  raise(exponents.a, exponents.b, first, count, top);
  Result per_unit;
  int largest = 0;
  for (int i = 0; i < 16 * 8; ++i) {
    int& exponent = (&top[0][0])[i];
    largest = std::max(largest, exponent);
    exponent = std::clamp(exponent, kSmallest, kLargest);
    (&per_unit[0][0])[i] = power_of_two(bits - exponent);
  }
  if (largest > kLargest) return false;
  add_products(m, first, count, per_unit, sums);
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      const int kept = static_cast<int>(d[row][column] * per_unit[row][column]);
      const double total = static_cast<double>(sums[row][column]) + kept;
      d[row][column] = cut_off(total * static_cast<double>(power_of_two(top[row][column] - bits)));
    }
  return true;
}

// Returns false if the case is not modelled.
bool add_as_measured(MmaOperands& m) {
  const bool hopper = simulation().compute_capability >= 90;
  const int count = hopper ? 16 : 8, bits = hopper ? 25 : 24;
  Exponents exponents;
  exponents_of(&m.a[0][0], 16 * 16, m.smallest_exponent, &exponents.a[0][0]);
  exponents_of(&m.b[0][0], 16 * 8, m.smallest_exponent, &exponents.b[0][0]);
  Result d;
  std::copy(&m.d[0][0], &m.d[0][0] + 16 * 8, &d[0][0]);
  for (int first = 0; first < 16; first += count)
    if (!add_at_once(m, exponents, first, count, bits, d)) return false;
  std::copy(&d[0][0], &d[0][0] + 16 * 8, &m.d[0][0]);
  return true;
}

}  // namespace

void multiply_and_add(MmaOperands& m) {
  if (simulation().mma_sums == MmaSums::as_measured && add_as_measured(m)) return;
  for (int row = 0; row < 16; ++row) add_in_order(m.a[row], m.b, m.d[row]);
}

}  // namespace dp::simt
