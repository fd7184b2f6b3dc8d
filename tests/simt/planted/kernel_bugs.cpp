#include "simt/planted/bugs.h"
#include "simt/planted/kernels.h"
#include "simt/rig.h"

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
  };
}

}  // namespace dp::simt::test
