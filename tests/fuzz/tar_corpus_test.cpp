// Replays inputs of the tar fuzzer, and mutations of each with a fixed seed.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "dp/random.h"
#include "fuzz/tar_case.h"
#include "support/catch.h"

using dp::test::run_tar_case;
using dp::test::TarVerdict;

namespace {

using Bytes = std::vector<std::uint8_t>;

std::vector<Bytes> good_inputs() {
  std::vector<Bytes> inputs;
  for (const char* name : {"gnu", "pax", "ustar", "v7"}) {  // the --format of GNU tar
    std::ifstream file(std::string(DP_TAR_CORPUS "/") + name, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

}  // namespace

TEST_CASE("the tar fuzzer reads good inputs, and corrected checksums are those of tar") {
  for (const Bytes& good : good_inputs()) {
    CHECK(run_tar_case(good) == TarVerdict::read);
    Bytes corrected = good;
    dp::test::correct_checksums(corrected);
    CHECK(corrected == good);
  }
}

TEST_CASE("the tar fuzzer reads or rejects mutated inputs") {
  dp::Random random(8, dp::RandomUse::synthetic);
  int read = 0, refused = 0;
  for (const Bytes& good : good_inputs())
    for (int round = 0; round < 300; ++round) {
      Bytes bytes = good;
      for (std::uint32_t change = random.below(4) + 1; change > 0; --change) {
        const std::size_t block = 512 * random.below(static_cast<std::uint32_t>(bytes.size() / 512));
        const std::size_t at = block + (random.below(2) ? 124 + random.below(34) : random.below(512));
        bytes[at] = static_cast<std::uint8_t>(random.below(2) ? '0' + random.below(10) : random.next());
      }
      dp::test::correct_checksums(bytes);
      ++(run_tar_case(bytes) == TarVerdict::read ? read : refused);
    }
  CHECK(read > 100);
  CHECK(refused > 100);
}
