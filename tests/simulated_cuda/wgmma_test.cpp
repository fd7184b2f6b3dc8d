// The emulated wgmma agrees with plain loops, and the emulator reports kernels that break its rules.
#include "simulated_cuda/kernels/multiply_lines.h"

#include <cmath>
#include <random>

#include "kernels/low_float.h"
#include "simulated_cuda/rig.h"
#include "support/catch.h"

namespace dp::simt::test {
namespace {

using Rows = std::vector<unsigned short>;

struct Operands {
  explicit Operands(bool is_bfloat, int count = kOperandRows) : bfloat(is_bfloat) {
    std::mt19937 generator(1);
    std::uniform_real_distribution<float> values(-4, 4);
    for (Rows* const rows : {&a, &b})
      for (int i = 0; i < count * 64; ++i) {
        const float x = values(generator);
        rows->push_back(bfloat ? kernels::from_float<kernels::BFloat16>(x).bits
                               : kernels::from_float<kernels::Float16>(x).bits);
      }
  }
  double value(const Rows& rows, bool k_major, int line, int k) const {
    return k_major ? at(rows, kFirstRow + line, kFirstK + k) : at(rows, kFirstRow + k, line);
  }
  double at(const Rows& rows, int row, int column) const {
    const unsigned short bits = rows[static_cast<std::size_t>(row * 64 + column)];
    return static_cast<double>(bfloat ? kernels::to_float(kernels::BFloat16{bits})
                                      : kernels::to_float(kernels::Float16{bits}));
  }

  bool bfloat;
  Rows a, b;
};

void run(const WgmmaForm& form, const Operands& operands, const DeviceArray<float>& d) {
  const TestStream stream;
  const DeviceArray<unsigned short> a(operands.a), b(operands.b);
  multiply_lines(form, a.get(), b.get(), d.get(), stream);
  cudaStreamSynchronize(stream);
}

std::size_t wrong_results(const WgmmaForm& form, const Operands& operands) {
  const DeviceArray<float> device_d(std::vector<float>(64 * 64, NAN));
  run(form, operands, device_d);
  const std::vector<float> d = device_d.values();
  std::size_t wrong = 0;
  for (int line = 0; line < 64; ++line)
    for (int column = 0; column < 64; ++column) {
      double sum = 0;
      for (int k = 0; k < 16; ++k)
        sum +=
            operands.value(operands.a, form.k_major_a, line, k) * operands.value(operands.b, form.k_major_b, column, k);
      // 16 products of magnitude at most 16, added in float32.
      wrong +=
          !(std::abs(static_cast<double>(d[static_cast<std::size_t>(line * 64 + column)]) - sum) <= 16 * 256 * 0x1p-24);
    }
  return wrong;
}

std::size_t wrong_register_results(const WgmmaRegisterForm& form, const Operands& operands) {
  const DeviceArray<float> device_d(std::vector<float>(static_cast<std::size_t>(64 * form.columns), NAN));
  const TestStream stream;
  const DeviceArray<unsigned short> a(operands.a), b(operands.b);
  multiply_registers(form, a.get(), b.get(), device_d.get(), stream);
  cudaStreamSynchronize(stream);
  const std::vector<float> d = device_d.values();
  std::size_t wrong = 0;
  for (int line = 0; line < 64; ++line)
    for (int column = 0; column < form.columns; ++column) {
      double sum = 0;
      for (int k = 0; k < 16; ++k)
        sum += operands.at(operands.a, line, kFirstK + k) *
               (form.k_major_b ? operands.at(operands.b, column, kFirstK + k)
                               : operands.at(operands.b, column / 64 * 16 + k, column % 64));
      const double off = std::abs(static_cast<double>(d[static_cast<std::size_t>(line * form.columns + column)]) - sum);
      wrong += !(off <= 16 * 256 * 0x1p-24);  // as above
    }
  return wrong;
}

std::string only_report(BrokenRule broken) {
  const FreshSimulation fresh;
  run({true, true, true, broken}, Operands(true), DeviceArray<float>(64 * 64));
  const std::vector<std::string> reports = take_reports();
  REQUIRE(reports.size() == 1);
  return reports[0];
}

}  // namespace

TEST_CASE("wgmma: every layout of the operands is correct, in both types and in any order of threads") {
  for (const Schedule& schedule : schedules()) {
    const FreshSimulation fresh;
    use(schedule);
    for (const bool bfloat : {true, false}) {
      const Operands operands(bfloat);
      for (const bool k_major_a : {true, false})
        for (const bool k_major_b : {true, false}) CHECK(wrong_results({bfloat, k_major_a, k_major_b}, operands) == 0);
    }
    CHECK(take_reports().empty());
  }
}

TEST_CASE(
    "wgmma: with the first operand in registers, every layout of the second is correct, with 64 and 128 columns") {
  for (const Schedule& schedule : schedules()) {
    const FreshSimulation fresh;
    use(schedule);
    for (const bool bfloat : {true, false}) {
      const Operands operands(bfloat, 128);
      for (const bool k_major_b : {true, false})
        for (const int columns : {64, 128}) CHECK(wrong_register_results({bfloat, k_major_b, columns}, operands) == 0);
    }
    CHECK(take_reports().empty());
  }
}

TEST_CASE("wgmma: a change of the registers of an operand before the wait gives wrong results") {
  const FreshSimulation fresh;
  simulation().async_copy = AsyncCopy::lazy;
  CHECK(wrong_register_results({true, true, 64, BrokenRule::wait}, Operands(true, 128)) > 0);
}

TEST_CASE("wgmma: a missing fence, proxy fence or wait is detected") {
  CHECK(only_report(BrokenRule::fence).find("without a wgmma.fence before it") != std::string::npos);
  CHECK(only_report(BrokenRule::proxy_fence).find("fence.proxy.async is missing") != std::string::npos);
  const FreshSimulation fresh;
  simulation().async_copy = AsyncCopy::lazy;
  CHECK(wrong_results({true, true, true, BrokenRule::wait}, Operands(true)) > 0);
}

TEST_CASE("wgmma: different operands in the warps of a warpgroup are detected") {
  CHECK(only_report(BrokenRule::same_operands).find("warps of a warpgroup pass different operands") !=
        std::string::npos);
}

}  // namespace dp::simt::test
