// The limits of host memory: the machine, and control groups v1 and v2.
#include <map>

#include "kernels/device/host/memory.h"
#include "support/catch.h"
#include "support/fake_system.h"

using namespace dp;

namespace {

constexpr std::size_t kMachine = std::size_t{8'000'000} * 1024;
constexpr const char* kFirst = "/sys/fs/cgroup/memory";
constexpr const char* kSecond = "/sys/fs/cgroup";

struct LimitRow {
  const char* what;
  std::string groups;                        // /proc/self/cgroup
  std::map<std::string, std::string> files;  // except /proc/meminfo
  std::size_t bytes;
  std::string limit;
};

TEST_CASE("the memory limit is that of the machine or of a control group of either version") {
  const std::string none = "/proc/meminfo", in_use = "anon 1000000\nfile 5000000000\nshmem 500000\n",
                    in_use_first = "rss 1\ntotal_cache 5000000000\ntotal_rss 1000000\ntotal_shmem 500000\n";
  const LimitRow rows[] = {
      {"no groups", "", {}, kMachine, none},
      {"a group without a limit", "0::/a\n", {{"/sys/fs/cgroup/a/memory.max", "max\n"}}, kMachine, none},
      {"a limit above the machine's", "0::/a\n", {{"/sys/fs/cgroup/a/memory.max", "99000000000000\n"}}, kMachine, none},
      {"version 2",
       "0::/a\n",
       {{"/sys/fs/cgroup/a/memory.max", "4000000\n"}, {"/sys/fs/cgroup/a/memory.stat", in_use}},
       2500000,
       "/sys/fs/cgroup/a/memory.max"},
      {"a group above",
       "0::/a/b/c\n",
       {{"/sys/fs/cgroup/a/memory.max", "3000000\n"}, {"/sys/fs/cgroup/a/b/c/memory.max", "4000000\n"}},
       3000000,
       "/sys/fs/cgroup/a/memory.max"},
      {"the group itself, below another",
       "0::/a/b\n",
       {{"/sys/fs/cgroup/a/memory.max", "5000000\n"}, {"/sys/fs/cgroup/a/b/memory.max", "4000000\n"}},
       4000000,
       "/sys/fs/cgroup/a/b/memory.max"},
      {"a container that has the group at the mount",
       "0::/docker/12ab\n",
       {{"/sys/fs/cgroup/memory.max", "4000000\n"}},
       4000000,
       "/sys/fs/cgroup/memory.max"},
      {"the root of a namespace",
       "0::/\n",
       {{"/sys/fs/cgroup/memory.max", "4000000\n"}},
       4000000,
       "/sys/fs/cgroup/memory.max"},
      {"more in use than the limit",
       "0::/a\n",
       {{"/sys/fs/cgroup/a/memory.max", "1200000\n"}, {"/sys/fs/cgroup/a/memory.stat", in_use}},
       0,
       "/sys/fs/cgroup/a/memory.max"},
      {"version 1",
       "5:cpu,cpuacct:/x\n4:memory:/a/b\n0::/\n",
       {{std::string(kFirst) + "/a/b/memory.limit_in_bytes", "4000000\n"},
        {std::string(kFirst) + "/a/b/memory.stat", in_use_first}},
       2500000,
       std::string(kFirst) + "/a/b/memory.limit_in_bytes"},
      {"version 1 without a limit",
       "4:memory:/a\n",
       {{std::string(kFirst) + "/a/memory.limit_in_bytes", "9223372036854771712\n"}},
       kMachine,
       none},
      {"version 1 beside other controllers, in a container",
       "4:hugetlb,memory:/docker/12ab\n",
       {{std::string(kFirst) + "/memory.limit_in_bytes", "4000000\n"}},
       4000000,
       std::string(kFirst) + "/memory.limit_in_bytes"},
      {"another controller's group of the same name",
       "4:cpu:/a\n",
       {{std::string(kFirst) + "/a/memory.limit_in_bytes", "4000000\n"}},
       kMachine,
       none},
      {"both versions, the lesser counts",
       "4:memory:/a\n0::/a\n",
       {{std::string(kFirst) + "/a/memory.limit_in_bytes", "4000000\n"},
        {std::string(kSecond) + "/a/memory.max", "3000000\n"}},
       3000000,
       std::string(kSecond) + "/a/memory.max"},
  };
  for (const LimitRow& row : rows) {
    INFO(row.what);
    const test::FakeSystem system;
    system.set_available(8'000'000);
    system.write("/proc/self/cgroup", row.groups);
    for (const auto& [path, text] : row.files) system.write(path, text);
    const auto room = kernels::host_room();
    REQUIRE(room.has_value());
    CHECK(room->bytes == row.bytes);
    CHECK_THAT(room->limit, Catch::Contains(row.limit));
    CHECK(kernels::free_host_memory() == std::max<std::size_t>(row.bytes, 1));
  }
}

TEST_CASE("the limit of the machine is MemAvailable") {
  const test::FakeSystem system;
  system.write("/proc/meminfo",
               "MemTotal: 9000 kB\nHugePages_Total:       7\nMemAvailable:    5000 kB\nMemFree: 1 kB\n");
  const auto room = kernels::host_room();
  REQUIRE(room.has_value());
  CHECK(room->bytes == 5000 * 1024);
  CHECK(room->limit == "MemAvailable of /proc/meminfo");
  system.write("/proc/self/cgroup", "0::/a/b\n");
  system.write("/sys/fs/cgroup/a/b/memory.max", "5120000\n");  // the same: the machine's is reported
  CHECK(kernels::host_room()->limit == "MemAvailable of /proc/meminfo");
  system.write("/sys/fs/cgroup/a/memory.max", "5119999\n");
  CHECK(kernels::host_room()->limit == "/sys/fs/cgroup/a/memory.max");
  CHECK(kernels::host_room()->bytes == 5119999);
}

TEST_CASE("a system without memory information has no limit") {
  const test::FakeSystem system;
  CHECK_FALSE(kernels::host_room().has_value());
  CHECK(kernels::free_host_memory() == 0);
}

}  // namespace
