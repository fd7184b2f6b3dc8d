// The range of every number on the command line. Both ends are accepted; values beyond them are refused with the flag's
// name.
#include <string>
#include <vector>

#include "apps/run_program.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

struct Range {
  std::string flag;
  std::string below, lowest, highest, above;  // an empty value is not tried
};

const std::vector<Range> kRanges{
    {"--classes", "0", "1", "1048576", "1048577"},
    {"--images", "0", "1", "67108864", "67108865"},
    {"--num-gpus", "0", "1", "1024", "1025"},
    {"--cpu", "0", "1", "256", "257"},
    {"--replicas-per-device", "0", "1", "64", "65"},
    {"--threads-per-replica", "0", "1", "1024", "1025"},
    {"--nnodes", "0", "1", "1024", "1025"},
    {"--node-rank", "-1", "0", "1023", "1024"},
    {"--master-port", "0", "1", "65535", "65536"},
    {"--timeout", "-0.001", "0", "1000000", "1000001"},
    {"--batch-size", "0", "1", "1048576", "1048577"},
    {"--batch-size-per-gpu", "0", "1", "1048576", "1048577"},
    {"--epochs", "0", "1", "1000000000", "1000000001"},
    {"--max-restarts", "-1", "0", "1000", "1001"},
    {"--max-steps", "0", "1", "1000000000", "1000000001"},
    {"--lr", "-0.001", "0", "1000000", "1000001"},
    {"--momentum", "-0.001", "0", "0.999", "1"},
    {"--weight-decay", "-0.001", "0", "1000000", "1000001"},
    {"--lr-step-size", "0", "0.000001", "1000000000", "1000000001"},
    {"--lr-gamma", "-0.001", "0", "1000000", "1000001"},
    {"--lr-milestones", "-1", "0", "1000000000", "1000000001"},
    {"--lr-power", "0", "0.000001", "1000", "1001"},
    {"--lr-pct-start", "-0.001", "0", "1", "1.001"},
    {"--lr-div-factor", "0", "0.000001", "1000000000000", "1000000000001"},
    {"--lr-final-div-factor", "0", "0.000001", "1000000000000", "1000000000001"},
    {"--lr-warmup-epochs", "-0.001", "0", "1000000000", "1000000001"},
    {"--grad-accum-steps", "0", "1", "1048576", "1048577"},
    {"--clip-grad-norm", "0", "0.000001", "1000000000000", "1000000000001"},
    {"--label-smoothing", "-0.001", "0", "0.999", "1"},
    {"--mixup-alpha", "-0.001", "0", "4", "4.001"},
    {"--cutmix-alpha", "-0.001", "0", "4", "4.001"},
    {"--model-ema-decay", "-0.001", "0", "0.999", "1"},
    {"--bucket-mb", "0", "0.000001", "1000000000", "1000000001"},
    {"--logical-shards", "0", "1", "4096", "4097"},
    {"--pipeline-stages", "0", "1", "64", "65"},
    {"--image-size", "0", "1", "4096", "4097"},
    {"--crop-pct", "0.049", "0.05", "1", "1.001"},
    {"--val-split", "0", "0.000001", "0.999999", "1"},
    {"--seed", "-1", "0", "18446744073709551615", "18446744073709551616"},
    {"--workers", "0", "1", "256", "257"},
    {"--crop-padding", "-1", "0", "4096", "4097"},
    {"--rotation", "-0.001", "0", "180", "180.1"},
    {"--ra-ops", "0", "1", "16", "17"},
    {"--ra-magnitude", "-1", "0", "30", "31"},
    {"--augmix-severity", "0", "1", "10", "11"},
    {"--random-erase", "-0.001", "0", "1", "1.001"},
    {"--checkpoint-hist", "-1", "0", "1048576", "1048577"},
    {"--print-freq", "0", "1", "1000000000", "1000000001"},
};

}  // namespace

TEST_CASE("every number on the command line is accepted at both ends of its range and rejected beyond") {
  const dp::test::TemporaryFolder temp;
  for (const Range& range : kRanges) {
    // --list-models parses and checks the numbers, but trains nothing.
    const auto run = [&](const std::string& value) {
      return dp::test::run_dp_train({range.flag + "=" + value, "--list-models"}, temp.path());
    };
    for (const std::string& value : {range.lowest, range.highest}) {
      INFO(range.flag << " " << value);
      CHECK(run(value).code == 0);
    }
    for (const std::string& value : {range.below, range.above}) {
      const dp::test::Outcome outcome = run(value);
      INFO(range.flag << " " << value << ": " << outcome.err);
      CHECK(outcome.code == 2);
      CHECK_THAT(outcome.err, Catch::Contains(range.flag));
    }
  }
}
