// Generated inputs of the CIFAR fuzzer, and mutations of each with a fixed seed.
#include "data/cifar_bytes.h"
#include "dp/random.h"
#include "fuzz/cifar_case.h"
#include "support/catch.h"

using dp::test::CifarVerdict;
using dp::test::run_cifar_case;

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes input(bool hundred, int records) {
  Bytes bytes = dp::test::cifar_records(records, hundred ? 2 : 1);
  bytes.insert(bytes.begin(), static_cast<std::uint8_t>((records - 1) << 1 | hundred));
  return bytes;
}

}  // namespace

TEST_CASE("the CIFAR fuzzer reads good inputs and rejects truncated and extended ones") {
  for (const bool hundred : {false, true})
    for (int records = 1; records <= 8; ++records) {
      Bytes bytes = input(hundred, records);
      CHECK(run_cifar_case(bytes) == CifarVerdict::read);
      bytes.push_back(0);
      CHECK(run_cifar_case(bytes) == CifarVerdict::refused);
      bytes.resize(bytes.size() - 2);
      CHECK(run_cifar_case(bytes) == CifarVerdict::refused);
    }
  CHECK(run_cifar_case({}) == CifarVerdict::refused);
}

TEST_CASE("the CIFAR fuzzer reads or rejects mutated inputs") {
  dp::Random random(6, dp::RandomUse::synthetic);
  int read = 0, refused = 0;
  for (int round = 0; round < 400; ++round) {
    Bytes bytes = input(round % 2, 1 + round % 3);
    for (std::uint32_t change = random.below(4) + 1; change > 0; --change) {
      const std::size_t at = random.below(4) ? random.below(3) : random.below(static_cast<std::uint32_t>(bytes.size()));
      switch (random.below(6)) {
        case 0: bytes.erase(bytes.begin() + static_cast<long>(at)); break;
        case 1: bytes.insert(bytes.begin() + static_cast<long>(at), static_cast<std::uint8_t>(random.next())); break;
        default: bytes[at] = static_cast<std::uint8_t>(random.below(128));
      }
    }
    ++(run_cifar_case(bytes) == CifarVerdict::read ? read : refused);
  }
  CHECK(read > 0);
  CHECK(refused > 200);
}
