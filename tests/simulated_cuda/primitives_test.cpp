// Every device primitive against its description in the CUDA programming guide, for all thread orders.
#include "simulated_cuda/kernels/primitives.h"

#include <cmath>
#include <numeric>
#include <random>

#include "kernels/low_float.h"
#include "simulated_cuda/rig.h"
#include "support/catch.h"

namespace dp::simt::test {
namespace {

std::vector<int> numbers(int n, int first = 0) {
  std::vector<int> values(n);
  std::iota(values.begin(), values.end(), first);
  return values;
}

template <class Test>
void for_all_schedules(Test test) {
  for (const Schedule& schedule : schedules()) {
    const FreshSimulation fresh;
    use(schedule);
    const TestStream stream;
    test(stream);
    CHECK(take_reports().empty());
  }
}

// The lane that `lane` reads from.
int source(Shuffle kind, int lane, int selector, int width) {
  const int base = lane / width * width;
  switch (kind) {
    case Shuffle::index: return base + selector % width;
    case Shuffle::up: return lane - selector < base ? lane : lane - selector;
    case Shuffle::down: return lane + selector < base + width ? lane + selector : lane;
    case Shuffle::exclusive_or: return (lane ^ selector) < base + width ? lane ^ selector : lane;
  }
  return lane;
}

}  // namespace

TEST_CASE("shuffles of every kind work over whole warps and groups of lanes") {
  for_all_schedules([](const TestStream& stream) {
    for (const Shuffle kind : {Shuffle::index, Shuffle::up, Shuffle::down, Shuffle::exclusive_or}) {
      for (const int width : {32, 8}) {
        for (const int selector : {1, 5}) {
          constexpr int kThreads = 64;
          const DeviceArray<int> x(numbers(kThreads, 100)), out(kThreads);
          shuffle_lanes(kind, x, out, kThreads, selector, width, stream);
          stream.finish();
          const auto values = out.values();
          for (int t = 0; t < kThreads; ++t)
            if (values[t] != 100 + t / 32 * 32 + source(kind, t % 32, selector, width))
              CHECK(values[t] == 100 + t / 32 * 32 + source(kind, t % 32, selector, width));
        }
      }
    }
  });
}

TEST_CASE("votes work over a whole warp and over 8 lanes") {
  for_all_schedules([](const TestStream& stream) {
    constexpr int kThreads = 40;
    std::vector<int> x(kThreads, 1);
    x[3] = x[31] = 0;
    const DeviceArray<int> device_x(x);
    const DeviceArray<unsigned> out(3 * kThreads);
    vote_lanes(device_x, out, kThreads, stream);
    stream.finish();
    const auto votes = out.values();
    for (int t = 0; t < kThreads; ++t) {
      const std::vector<unsigned> wanted =
          t < 32 ? std::vector<unsigned>{0x7ffffff7u, 1, 0} : std::vector<unsigned>{0xffu, 1, 1};
      CHECK(std::vector<unsigned>(votes.begin() + 3 * t, votes.begin() + 3 * t + 3) == wanted);
    }
  });
}

TEST_CASE("atomics work on global and shared integers and floats") {
  for_all_schedules([](const TestStream& stream) {
    constexpr int kThreads = 48;
    const DeviceArray<int> out(std::vector<int>{0, 0, 0, 0, 0, -1, 0, 0});
    update_atomically(out, kThreads, stream);
    const DeviceArray<unsigned> counter(std::vector<unsigned>{0});
    count_around(counter, 9, kThreads, stream);  // wraps from 9 to 0
    const DeviceArray<double> sum(std::vector<double>{0});
    add_doubles(sum, kThreads, stream);
    stream.finish();
    CHECK(out.values() == std::vector<int>{1128, -1128, 47, -47, 255, ~255, 7, kThreads});
    CHECK(counter.values()[0] == kThreads % 10);
    CHECK(sum.values()[0] == kThreads / 2);
  });
}

TEST_CASE("blocks and threads have three dimensions") {
  for_all_schedules([](const TestStream& stream) {
    const dim3 grid(3, 2, 2), block(5, 3, 2);
    const DeviceArray<int> out(12 * 30);
    write_places(out, grid, block, stream);
    stream.finish();
    CHECK(out.values() == numbers(12 * 30));
  });
}

TEST_CASE("cp.async copies 4, 8 and 16 bytes and fills with zeros") {
  for_all_schedules([](const TestStream& stream) {
    for (const int bytes : {4, 8, 16}) {
      constexpr int kThreads = 33, kValid = 20;
      const int words = bytes / 4;
      std::vector<unsigned> x(kThreads * words);
      std::iota(x.begin(), x.end(), 1u);
      const DeviceArray<unsigned> device_x(x), y(x.size());
      copy_asynchronously(device_x, y, bytes, kThreads, kValid, stream);
      stream.finish();
      std::fill(x.begin() + kValid * words, x.end(), 0u);
      CHECK(y.values() == x);
    }
  });
}

TEST_CASE("dynamic, static and scalar shared memory coexist") {
  for_all_schedules([](const TestStream& stream) {
    std::vector<float> x(70);
    std::iota(x.begin(), x.end(), 1.0f);
    const DeviceArray<float> device_x(x), y(x.size());
    reverse_in_shared(device_x, y, static_cast<int>(x.size()), stream);
    stream.finish();
    CHECK(y.values() == std::vector<float>(x.rbegin(), x.rend()));
  });
}

TEST_CASE("ldmatrix distributes matrices over lanes, straight and transposed") {
  const FreshSimulation fresh;
  const TestStream stream;
  std::vector<unsigned short> rows(4 * 64);  // indices: matrix, row, column
  std::iota(rows.begin(), rows.end(), static_cast<unsigned short>(1));
  const DeviceArray<unsigned short> device_rows(rows);
  for (const bool transposed : {false, true}) {
    const DeviceArray<unsigned> out(4 * 32);
    load_matrices(device_rows, out, transposed, stream);
    stream.finish();
    const auto fragments = out.values();
    const auto at = [&](int matrix, int row, int column) {
      return static_cast<unsigned>(rows[matrix * 64 + (transposed ? column * 8 + row : row * 8 + column)]);
    };
    for (int lane = 0; lane < 32; ++lane)
      for (int matrix = 0; matrix < 4; ++matrix)
        CHECK(fragments[4 * lane + matrix] ==
              (at(matrix, lane / 4, lane % 4 * 2) | at(matrix, lane / 4, lane % 4 * 2 + 1) << 16));
  }
}

TEST_CASE("mma multiplies bfloat16 and float16, and values are packed") {
  using kernels::BFloat16, kernels::Float16;
  const FreshSimulation fresh;
  const TestStream stream;
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> values(-4, 4);
  for (const bool bfloat : {true, false}) {
    const auto bits = [&](float x) {
      return bfloat ? kernels::from_float<BFloat16>(x).bits : kernels::from_float<Float16>(x).bits;
    };
    const auto value = [&](unsigned short x) {
      return static_cast<double>(bfloat ? kernels::to_float(BFloat16{x}) : kernels::to_float(Float16{x}));
    };
    std::vector<unsigned short> a(16 * 16), b(8 * 16);
    for (auto* const matrix : {&a, &b})
      for (unsigned short& element : *matrix) element = bits(values(generator));
    const DeviceArray<unsigned short> device_a(a), device_b(b);
    const DeviceArray<float> device_d(16 * 8);
    multiply_matrices(bfloat, device_a, device_b, device_d, stream);
    std::vector<float> x{1.0f, -2.5f, 1 + 0x1p-8f, 1 + 0x1p-11f, 1e-7f, 70000.0f, INFINITY, -0.0f};
    const DeviceArray<float> device_x(x);
    const DeviceArray<unsigned> device_pairs(x.size() / 2);
    pack_pairs(bfloat, device_x, device_pairs, static_cast<int>(x.size() / 2), stream);
    stream.finish();
    const auto d = device_d.values();
    for (int row = 0; row < 16; ++row)
      for (int column = 0; column < 8; ++column) {
        double sum = 0;
        for (int k = 0; k < 16; ++k) sum += value(a[row * 16 + k]) * value(b[column * 16 + k]);
        // 16 products of magnitude at most 16, added in float32.
        if (!(std::abs(d[row * 8 + column] - sum) <= 16 * 256 * 0x1p-24)) CHECK(d[row * 8 + column] == sum);
      }
    const auto pairs = device_pairs.values();
    for (std::size_t i = 0; i < pairs.size(); ++i)
      CHECK(pairs[i] == (bits(x[2 * i]) | static_cast<unsigned>(bits(x[2 * i + 1])) << 16));
  }
  CHECK(take_reports().empty());
}

TEST_CASE("mma truncates sums as tensor cores of sm_80 and sm_90 do, or adds in float32") {
  struct Case {
    int capability;
    MmaSums sums;
    float units;  // the result is 1 + units * 2^-23
  };
  // The sum of 1 and 15 products of 3 * 2^-25. sm_90 adds all 16 exactly (1 + 45 * 2^-25) and truncates to 2^-23. sm_80
  // adds 8 at a time and truncates each small product to 2^-24: 7 of them give 3.5 units, the next 8 give 4. In float32
  // each addition rounds up to one unit.
  for (const Case& c :
       {Case{90, MmaSums::as_measured, 11}, Case{100, MmaSums::as_measured, 11}, Case{80, MmaSums::as_measured, 7},
        Case{89, MmaSums::as_measured, 7}, Case{90, MmaSums::in_order, 15}})
    for (const float sign : {1.0f, -1.0f}) {
      const FreshSimulation fresh;
      simulation().compute_capability = c.capability;
      simulation().mma_sums = c.sums;
      std::vector<unsigned short> a(16 * 16, kernels::from_float<kernels::BFloat16>(sign * 0x3p-25f).bits);
      for (int row = 0; row < 16; ++row) a[row * 16] = kernels::from_float<kernels::BFloat16>(sign).bits;
      const std::vector<unsigned short> b(8 * 16, kernels::from_float<kernels::BFloat16>(1).bits);
      const TestStream stream;
      const DeviceArray<unsigned short> device_a(a), device_b(b);
      const DeviceArray<float> d(16 * 8);
      multiply_matrices(true, device_a, device_b, d, stream);
      stream.finish();
      INFO("sm_" << c.capability);
      CHECK(d.values() == std::vector<float>(16 * 8, sign * (1 + c.units * 0x1p-23f)));
    }
  CHECK(take_reports().empty());
}

TEST_CASE("mma treats infinities, NaN and products beyond float32 as additions do") {
  const FreshSimulation fresh;
  const TestStream stream;
  const auto bits = [](float x) { return kernels::from_float<kernels::BFloat16>(x).bits; };
  for (const float large : {INFINITY, -INFINITY, 0x1p127f}) {
    std::vector<unsigned short> a(16 * 16, bits(1)), b(8 * 16, bits(4));
    a[3 * 16 + 5] = bits(large);
    const DeviceArray<unsigned short> device_a(a), device_b(b);
    const DeviceArray<float> d(16 * 8);
    multiply_matrices(true, device_a, device_b, d, stream);
    stream.finish();
    const auto values = d.values();
    for (int i = 0; i < 16 * 8; ++i) CHECK(values[i] == (i / 8 == 3 ? large * 4 : 64));
  }
}

TEST_CASE("pairs of float16 become floats") {
  const FreshSimulation fresh;
  const TestStream stream;
  const DeviceArray<unsigned> pairs(std::vector<unsigned>{0xc1003c00, 0x00017c00, 0x7bff8000});
  const DeviceArray<float> values(6);
  unpack_pairs(pairs, values, 3, stream);
  stream.finish();
  CHECK(values.values() == std::vector<float>{1, -2.5f, INFINITY, 0x1p-24f, -0.0f, 65504});
  CHECK(take_reports().empty());
}

TEST_CASE("arithmetic missing in the C library is correct") {
  const FreshSimulation fresh;
  const TestStream stream;
  const DeviceArray<float> out(kMathValues);
  compute_math(out, stream);
  stream.finish();
  const std::vector<float> wanted{
      0.5f, std::exp(1.0f), std::log(2.0f), 0.25f, 0.125f, 1, 0, 0, 7, 3, 2, -2, -1, -1, 8, 31, 4,
      3,    1.25f,          -2.5f,          -1,    4,      3, 2};
  CHECK(out.values() == wanted);
}

TEST_CASE("__trap ends the kernel with an error that names the place") {
  const FreshSimulation fresh;
  const TestStream stream;
  trap(stream);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
  const auto reports = take_reports();
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].find("kernel trap_kernel on cuda:0: block 0 thread 0: __trap at primitives.cu:") == 0);
}

}  // namespace dp::simt::test
