#include <algorithm>
#include <cmath>

#include "simulated_cuda/planted/bugs.h"
#include "simulated_cuda/planted/kernels.h"
#include "simulated_cuda/rig.h"

namespace dp::simt::test {
namespace {

std::vector<float> ramp(int n) {
  std::vector<float> values(n);
  for (int i = 0; i < n; ++i) values[i] = static_cast<float>(i + 1);
  return values;
}

template <KernelBug bug>
bool row_is_right(bool planted) {
  const auto x = ramp(kSteps * kRow);
  const TestStream stream;
  const DeviceArray<float> device_x(x), y(std::vector<float>(kRow, 0));
  run_row(bug, planted, device_x, y, stream);
  stream.finish();
  const auto row = y.values();
  for (int t = 0; t < kRow; ++t)
    if (!(row[t] == expected_row(bug, x.data(), t))) return false;
  return true;
}

bool blocks_are_counted(bool planted) {
  const TestStream stream;
  const DeviceArray<float> sum(std::vector<float>{0});
  count_blocks(planted, sum, stream);
  stream.finish();
  return sum.values()[0] == kBlocks;
}

bool last_block_sums(bool planted) {
  const TestStream stream;
  const DeviceArray<float> parts(kBlocks), total(1);
  const DeviceArray<unsigned> count(std::vector<unsigned>{0});
  sum_by_last_block(planted, parts, count, total, stream);
  stream.finish();
  return total.values()[0] == kBlocks * (kBlocks + 1) / 2;
}

bool last_block_is_last(bool planted) {
  const TestStream stream;
  const DeviceArray<float> parts(kBlocks * kRow), total(1);
  const DeviceArray<unsigned> count(std::vector<unsigned>{0});
  count_early(planted, parts, count, total, stream);
  stream.finish();
  return total.values()[0] == kBlocks * kRow;
}

bool blocks_have_scratch(bool planted) {
  const TestStream stream;
  const auto x = ramp(kBlocks * kRow);
  const DeviceArray<float> device_x(x), scratch(x.size()), y(x.size());
  reverse_by_scratch(planted, device_x, scratch, y, stream);
  stream.finish();
  auto wanted = x;
  for (auto row = wanted.begin(); row != wanted.end(); row += kRow) std::reverse(row, row + kRow);
  return y.values() == wanted;
}

bool blocks_end(bool planted) {
  simulation().spin_seconds = 0.3;
  const TestStream stream;
  const DeviceArray<unsigned> arrived(std::vector<unsigned>{0});
  const DeviceArray<float> y(kBlocks);
  spin(planted, arrived, y, stream);
  stream.finish();
  return y.values() == std::vector<float>(kBlocks, 2);
}

bool fours_are_aligned(bool planted) {
  const TestStream stream;
  const DeviceArray<float> x(std::vector<float>(kRow + 4, 1)), y(kRow);
  add_one_to_fours(planted, x, y, stream);
  stream.finish();
  return y.values() == std::vector<float>(kRow, 2);
}

template <typename Launch>
bool row_of_twos(const Launch& launch, int count = kRow) {
  const TestStream stream;
  const DeviceArray<float> y(count);
  launch(y.get(), stream);
  stream.finish();
  return y.values() == std::vector<float>(count, 2);
}
bool shared_is_asked_for(bool planted) {
  return row_of_twos(
      [&](float* y, cudaStream_t stream) { ok(use_dynamic_shared(!planted, 48 * 1024 + 16, y, stream)); });
}
bool shared_is_there(bool planted) {
  simulation().compute_capability = 75;
  return row_of_twos(
      [&](float* y, cudaStream_t stream) { ok(use_dynamic_shared(true, 64 * 1024 + (planted ? 16 : 0), y, stream)); });
}
bool both_fit(bool planted) {
  return row_of_twos([&](float* y, cudaStream_t stream) { use_both_shared(planted, y, stream); });
}
bool threads_are_bounded(bool planted) {
  const int threads = planted ? 2 * kRow : kRow;
  return row_of_twos([&](float* y, cudaStream_t stream) { use_threads(true, threads, y, stream); }, threads);
}
bool registers_suffice(bool planted) {
  const int threads = planted ? 288 : 256;
  return row_of_twos([&](float* y, cudaStream_t stream) { use_threads(false, threads, y, stream); }, threads);
}

// Planted: the caller accepts only the sum in float32 order.
bool sums_are_near(bool planted) {
  const TestStream stream;
  const DeviceArray<float> y(1);
  sum_by_mma(y, stream);
  stream.finish();
  float in_order = 1;
  for (int i = 0; i < 15; ++i) in_order += 0x3p-25f;
  // 17 summands are truncated at 2^-25 of the largest or finer, their sum at 2^-23.
  return planted ? y.values()[0] == in_order
                 : std::abs(y.values()[0] - (1 + 45 * 0x1p-25f)) <= 17 * 0x1p-24f + 0x1p-23f;
}

}  // namespace

std::vector<PlantedBug> planted_kernel_bugs() {
  return {
      {"missing_barrier", "no barrier between writing and reading shared memory", false,
       row_is_right<KernelBug::missing_barrier>},
      {"missing_trailing_barrier", "no barrier between reading a buffer and filling it again", false,
       row_is_right<KernelBug::missing_trailing_barrier>},
      {"missing_warp_barrier", "no `__syncwarp` between lanes that exchange through shared memory", false,
       row_is_right<KernelBug::missing_warp_barrier>},
      {"missing_copy_wait", "no wait for `cp.async`", false, row_is_right<KernelBug::missing_copy_wait>},
      {"outside_shared", "a write behind the end of a shared array", false, row_is_right<KernelBug::outside_shared>},
      {"unset_shared", "a read of shared memory that nobody has set", false, row_is_right<KernelBug::unset_shared>},
      {"wrong_mask", "a shuffle whose mask lacks lanes that call it", false, row_is_right<KernelBug::wrong_mask>},
      {"missing_lanes", "a shuffle that lanes of its mask do not reach", false, row_is_right<KernelBug::missing_lanes>},
      {"early_return", "a return before a barrier", false, row_is_right<KernelBug::early_return>},
      {"two_barriers", "threads of a block at two different barriers", false, row_is_right<KernelBug::two_barriers>},
      {"plain_sum_of_blocks", "several blocks add to one place without an atomic", false, blocks_are_counted},
      {"missing_fence", "the last block reads what others wrote without `__threadfence`", false, last_block_sums},
      {"early_count", "a block counts itself before all its threads have written", false, last_block_is_last},
      {"shared_scratch", "blocks keep what they compute in the same global memory", false, blocks_have_scratch},
      {"spinning_blocks", "blocks that wait for each other by reading a counter", false, blocks_end},
      {"misaligned_fours", "four floats are read at an address that is no multiple of 16", false, fours_are_aligned},
      {"unasked_shared", "more than 48 KiB of shared memory without `cudaFuncSetAttribute`", false,
       shared_is_asked_for},
      {"too_much_shared", "more shared memory than a block of the device can have", false, shared_is_there},
      {"shared_of_both_kinds", "dynamic and static shared memory that are more than 48 KiB only together", false,
       both_fit},
      {"more_threads_than_bounds", "a block of more threads than the kernel's launch bounds", false,
       threads_are_bounded},
      {"unbounded_registers", "a block of more than 256 threads, of a kernel without launch bounds", false,
       registers_suffice},
      {"sums_in_order", "a sum of `mma` is expected to be float32's, in order", false, sums_are_near},
  };
}

}  // namespace dp::simt::test
