#include "apps/dp_bench/comm.h"

#include "dp/error.h"
#include "support/catch.h"

using namespace dp_bench;

TEST_CASE("sizes are parsed as in nccl-tests") {
  CHECK(parse_bytes("-b", "8") == 8);
  CHECK(parse_bytes("-b", "64K") == 65536);
  CHECK(parse_bytes("-b", "128M") == 134217728);
  CHECK(parse_bytes("-b", "1g") == 1073741824);
  for (const char* bad : {"", "K", "8X", "8KB", "-8", "0", "1e30", "nan", "inf", "900G"}) {
    INFO(bad);
    CHECK_THROWS_WITH(parse_bytes("-e", bad), "-e: '" + std::string(bad) +
                                                  "' is not a size from 4 bytes to 100 GB, such as 8, 64K, 128M or 1G");
  }
}

TEST_CASE("the bus bandwidth is the algorithm bandwidth times the factor of nccl-tests") {
  CHECK(bus_factor("all_reduce", 4) == 1.5);
  CHECK(bus_factor("reduce_scatter", 4) == 0.75);
  CHECK(bus_factor("all_gather", 4) == 0.75);
  CHECK(bus_factor("gather", 4) == 0.75);
  CHECK(bus_factor("broadcast", 4) == 1);
  CHECK(bus_factor("reduce", 4) == 1);
}
