// The memory that replicas may use, and how errors print it.
#include "engine/step/memory/memory_room.h"

#include <cstdlib>

#include "dp/error.h"
#include "kernels/device/host/memory.h"
#include "support/catch.h"
#include "support/fake_system.h"

using namespace dp;
using namespace dp::engine;
using namespace dp::test;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20, kGiB = std::size_t{1} << 30;

std::optional<std::size_t> limit_of(const char* text) {
  ::setenv("DP_MEMORY_LIMIT", text, 1);
  struct Unset {
    ~Unset() { ::unsetenv("DP_MEMORY_LIMIT"); }
  } unset;
  return replica_limit();
}

}  // namespace

TEST_CASE("memory room: DP_MEMORY_LIMIT is a positive number of MiB") {
  ::unsetenv("DP_MEMORY_LIMIT");
  CHECK_FALSE(replica_limit().has_value());
  CHECK(limit_of("1") == kMiB);
  CHECK(limit_of("1.5") == kMiB + kMiB / 2);
  CHECK(limit_of("0.001") == std::size_t{1048});
  CHECK(limit_of("1e8") == 100'000'000 * kMiB);
  for (const std::string bad : {"", "0", "-1", "1e9", "inf", "nan", "ten", "1 ", " 1", "1x"}) {
    INFO(bad);
    try {
      limit_of(bad.c_str());
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::usage);
      CHECK(error.what() == "DP_MEMORY_LIMIT='" + bad + "' is not a positive number of MiB");
    }
  }
}

TEST_CASE("memory room: sizes are printed in KiB, from 1 MiB on in MiB, and from 10 GiB on in GiB") {
  CHECK(in_units(0) == "0.0 KiB");
  CHECK(in_units(384 * 1024) == "384.0 KiB");
  CHECK(in_units(kMiB - 1) == "1024.0 KiB");
  CHECK(in_units(kMiB) == "1.0 MiB");
  CHECK(in_units(1536 * kMiB) == "1536.0 MiB");
  CHECK(in_units(10 * kGiB - 1) == "10240.0 MiB");
  CHECK(in_units(10 * kGiB) == "10.0 GiB");
  CHECK(in_units(12 * kGiB + kGiB / 2) == "12.5 GiB");
}

TEST_CASE("memory room: a buffer on the host is rounded up, one on a GPU is not, and a tenth stays free") {
  const Device cpu{}, gpu{DeviceKind::cuda, 0};
  CHECK(occupied_bytes(cpu, 0) == 0);
  CHECK(occupied_bytes(cpu, 1) == kernels::resident_bytes(1));
  CHECK(occupied_bytes(cpu, 1) == 64);
  CHECK(occupied_bytes(cpu, 2 * kMiB + 1) == 4 * kMiB);
  CHECK(occupied_bytes(gpu, 0) == 0);
  CHECK(occupied_bytes(gpu, 2 * kMiB + 1) == 2 * kMiB + 1);
  CHECK(usable_part(1000) == 900);
  CHECK(usable_part(19) == 9);
  CHECK(usable_part(9) == 0);
}

TEST_CASE("memory room: the host's room is the available memory and its source, or unknown") {
  const FakeSystem system;
  CHECK_FALSE(room_on(Device{}).has_value());
  system.set_available(1000);
  const std::optional<Room> room = room_on(Device{});
  REQUIRE(room.has_value());
  CHECK(room->bytes == 1000 * 1024);
  CHECK(room->limit == "MemAvailable of /proc/meminfo");
}
