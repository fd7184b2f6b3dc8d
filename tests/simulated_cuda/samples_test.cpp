// Four real kernels compared with plain loops in double, for all thread orders.
#include "simulated_cuda/kernels/samples.h"

#include <cmath>
#include <random>

#include "simulated_cuda/rig.h"
#include "support/catch.h"

namespace dp::simt::test {
namespace {

using bf16 = __nv_bfloat16;

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<float> result(count);
  for (float& value : result) value = values(generator);
  return result;
}

std::vector<bf16> rounded(const std::vector<float>& values) {
  std::vector<bf16> result;
  for (const float value : values) result.push_back(__float2bfloat16(value));
  return result;
}

void check_close(double got, double wanted, double tolerance) {
  if (!(std::abs(got - wanted) <= tolerance * (1 + std::abs(wanted)))) CHECK(got == wanted);
}

}  // namespace

TEST_CASE("channel sums with atomics, shuffles and a barrier are correct") {
  const FreshSimulation fresh;
  constexpr int kPixels = 131, kChannels = 128;
  const auto x = rounded(random_floats(kPixels * kChannels, 1));
  for (const Schedule& schedule : schedules()) {
    use(schedule);
    const TestStream stream;
    const DeviceArray<bf16> device_x(x);
    const DeviceArray<float> sums(std::vector<float>(kChannels, 0)), squares(std::vector<float>(kChannels, 0));
    channel_sums(device_x, sums, squares, kPixels, kChannels, stream);
    stream.finish();
    const auto s = sums.values(), q = squares.values();
    for (int c = 0; c < kChannels; ++c) {
      double sum = 0, square = 0;
      for (int p = 0; p < kPixels; ++p) {
        const double value = __bfloat162float(x[p * kChannels + c]);
        sum += value;
        square += value * value;
      }
      check_close(s[c], sum, 1e-5);
      check_close(q[c], square, 1e-5);
    }
  }
  CHECK(take_reports().empty());
}

TEST_CASE("a matrix product with two buffers of shared memory is correct") {
  const FreshSimulation fresh;
  constexpr int m = 70, n = 68, k = 44;
  const auto a = random_floats(m * k, 2), b = random_floats(k * n, 3);
  for (const Schedule& schedule : schedules()) {
    use(schedule);
    const TestStream stream;
    const DeviceArray<float> device_a(a), device_b(b), device_c(m * n);
    matrix_product(device_a, device_b, device_c, m, n, k, stream);
    stream.finish();
    const auto c = device_c.values();
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        double sum = 0;
        for (int l = 0; l < k; ++l) sum += static_cast<double>(a[i * k + l]) * b[l * n + j];
        check_close(c[i * n + j], sum, 1e-5);
      }
    }
  }
  CHECK(take_reports().empty());
}

TEST_CASE("cross entropy with whole warps that return early is correct") {
  const FreshSimulation fresh;
  constexpr int kRows = 37, kClasses = 101;
  const auto logits = random_floats(kRows * kClasses, 4);
  std::vector<int> labels(kRows);
  for (int row = 0; row < kRows; ++row) labels[row] = row * 7 % kClasses;
  for (const Schedule& schedule : schedules()) {
    use(schedule);
    const TestStream stream;
    const DeviceArray<float> device_logits(logits), device_losses(kRows), device_gradient(kRows * kClasses);
    const DeviceArray<int> device_labels(labels);
    cross_entropy(device_logits, device_labels, device_losses, device_gradient, kRows, kClasses, stream);
    stream.finish();
    const auto losses = device_losses.values(), gradient = device_gradient.values();
    for (int row = 0; row < kRows; ++row) {
      double sum = 0;
      const float* const x = &logits[row * kClasses];
      for (int i = 0; i < kClasses; ++i) sum += std::exp(static_cast<double>(x[i]));
      check_close(losses[row], std::log(sum) - x[labels[row]], 1e-5);
      for (int i = 0; i < kClasses; ++i)
        check_close(gradient[row * kClasses + i], std::exp(static_cast<double>(x[i])) / sum - (i == labels[row]), 1e-5);
    }
  }
  CHECK(take_reports().empty());
}

TEST_CASE("a convolution with cp.async, ldmatrix and mma is correct") {
  const FreshSimulation fresh;
  constexpr int kImages = 2, kHeight = 5, kWidth = 7, kIn = 32, kOut = 64;
  const auto x = rounded(random_floats(kImages * kHeight * kWidth * kIn, 5)),
             w = rounded(random_floats(kOut * 9 * kIn, 6));
  for (const Schedule& schedule : schedules()) {
    use(schedule);
    const TestStream stream;
    const DeviceArray<bf16> device_x(x), device_w(w), device_y(kImages * kHeight * kWidth * kOut);
    convolution(device_x, device_w, device_y, kImages, kHeight, kWidth, kIn, kOut, stream);
    stream.finish();
    const auto y = device_y.values();
    for (int pixel = 0; pixel < kImages * kHeight * kWidth; ++pixel) {
      for (int out = 0; out < kOut; out += 9) {
        double sum = 0;
        for (int tap = 0; tap < 9; ++tap) {
          const int row = pixel / kWidth % kHeight + tap / 3 - 1, column = pixel % kWidth + tap % 3 - 1;
          if (row < 0 || row >= kHeight || column < 0 || column >= kWidth) continue;
          const int from = pixel + (tap / 3 - 1) * kWidth + tap % 3 - 1;
          for (int in = 0; in < kIn; ++in)
            sum += static_cast<double>(__bfloat162float(x[from * kIn + in])) *
                   __bfloat162float(w[(out * 9 + tap) * kIn + in]);
        }
        check_close(__bfloat162float(y[pixel * kOut + out]), sum, 0.005);
      }
    }
  }
  CHECK(take_reports().empty());
}

}  // namespace dp::simt::test
