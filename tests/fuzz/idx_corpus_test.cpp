// Replays inputs of the IDX fuzzer, and five hundred mutations of each with a fixed seed.
#include <fstream>
#include <iterator>

#include "data/idx_bytes.h"
#include "dp/random.h"
#include "fuzz/idx_case.h"
#include "support/catch.h"

using dp::test::Bytes;
using dp::test::gzip;
using dp::test::idx_images;
using dp::test::idx_labels;
using dp::test::IdxVerdict;
using dp::test::run_idx_case;

namespace {

Bytes input(const Bytes& labels, const Bytes& images) {
  Bytes bytes;
  dp::test::put_number(bytes, static_cast<std::uint32_t>(labels.size()));
  bytes.erase(bytes.begin(), bytes.begin() + 2);
  for (const Bytes* file : {&labels, &images}) bytes.insert(bytes.end(), file->begin(), file->end());
  return bytes;
}

// The fuzzer's seed inputs, and images with non-zero pixels.
std::vector<Bytes> good_inputs() {
  std::vector<Bytes> inputs{input(gzip(idx_labels(2)), gzip(idx_images(2))), input(idx_labels(3), gzip(idx_images(3)))};
  for (const char* name : {"plain", "packed", "mixed", "two_members"}) {
    std::ifstream file(std::string(DP_IDX_CORPUS "/") + name, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

}  // namespace

TEST_CASE("the IDX fuzzer reads good inputs") {
  for (const Bytes& bytes : good_inputs()) CHECK(run_idx_case(bytes) == IdxVerdict::read);
}

TEST_CASE("the IDX fuzzer rejects bad inputs") {
  const Bytes bad[] = {{},
                       {0},
                       {0, 0},
                       {0xff, 0xff},
                       {0, 1, 0x1f},
                       {0, 2, 0x1f, 0x8b, 0x1f, 0x8b},
                       input(idx_labels(1), idx_labels(1)),
                       input(idx_labels(2), idx_images(1)),
                       input(gzip(gzip(idx_labels(1))), idx_images(1)),
                       // gzip members without content, then without an end
                       input({0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0}, idx_images(1)),
                       input({0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 3, 0xff, 0xff}, idx_images(1)),
                       input({0x1f, 0x8b, 8, 0xe0, 0, 0, 0, 0, 0, 3}, idx_images(1))};
  for (const Bytes& bytes : bad) CHECK(run_idx_case(bytes) == IdxVerdict::refused);
}

TEST_CASE("the IDX fuzzer reads or rejects mutated inputs") {
  dp::Random random(5, dp::RandomUse::synthetic);
  for (const Bytes& good : good_inputs())
    for (int round = 0; round < 500; ++round) {
      Bytes bytes = good;
      for (std::uint32_t change = random.below(4) + 1; change > 0; --change) {
        const std::size_t at = random.below(static_cast<std::uint32_t>(std::min<std::size_t>(bytes.size(), 64)));
        switch (random.below(3)) {
          case 0: bytes[at] = static_cast<std::uint8_t>(random.next()); break;
          case 1: bytes.erase(bytes.begin() + static_cast<long>(at)); break;
          default: bytes.insert(bytes.begin() + static_cast<long>(at), static_cast<std::uint8_t>(random.next()));
        }
      }
      CHECK_NOTHROW(run_idx_case(bytes));
    }
}
