// The limits on cores and threads: CPU quotas of control groups v1 and v2, and OpenMP's.
#include "kernels/device/host/cores.h"

#include <omp.h>

#include <map>
#include <string>
#include <thread>

#include "dp/data_parallel.h"
#include "dp/error.h"
#include "dp/models.h"
#include "engine/step/resolved_options.h"
#include "support/catch.h"
#include "support/fake_system.h"

using namespace dp;

namespace {

struct QuotaRow {
  const char* what;
  std::string groups;                        // /proc/self/cgroup
  std::map<std::string, std::string> files;  // below the fake root
  int cores;                                 // 0: no quota
  std::string source;
};

TEST_CASE("the CPU quota is the smallest of all groups of either version, rounded up to whole cores") {
  const std::string v2 = "/sys/fs/cgroup", v1 = "/sys/fs/cgroup/cpu", mounts = "/proc/self/mountinfo";
  const QuotaRow rows[] = {
      {"no groups", "", {}, 0, ""},
      {"no quota in version 2", "0::/a\n", {{v2 + "/a/cpu.max", "max 100000\n"}}, 0, ""},
      {"no quota in version 1",
       "1:cpu:/a\n",
       {{v1 + "/a/cpu.cfs_quota_us", "-1\n"}, {v1 + "/a/cpu.cfs_period_us", "100000\n"}},
       0,
       ""},
      {"two cores", "0::/a\n", {{v2 + "/a/cpu.max", "200000 100000\n"}}, 2, v2 + "/a/cpu.max of 2 cores"},
      {"half a core", "0::/a\n", {{v2 + "/a/cpu.max", "50000 100000\n"}}, 1, v2 + "/a/cpu.max of 0.5 cores"},
      {"the smallest quota", "0::/a\n", {{v2 + "/a/cpu.max", "1000 1000000\n"}}, 1, "of 0.001 cores"},
      {"a core and a half", "0::/a\n", {{v2 + "/a/cpu.max", "150000 100000\n"}}, 2, "of 1.5 cores"},
      {"a period of its own", "0::/a\n", {{v2 + "/a/cpu.max", "150000 50000\n"}}, 3, "of 3 cores"},
      {"the default period", "0::/a\n", {{v2 + "/a/cpu.max", "300000\n"}}, 3, "of 3 cores"},
      {"damaged text", "0::/a\n", {{v2 + "/a/cpu.max", "much\n"}, {v2 + "/cpu.max", "0 0\n"}}, 0, ""},
      {"a parent",
       "0::/a/b/c\n",
       {{v2 + "/a/cpu.max", "100000 100000\n"}, {v2 + "/a/b/c/cpu.max", "400000 100000\n"}},
       1,
       v2 + "/a/cpu.max"},
      {"the group itself, below a larger quota",
       "0::/a/b\n",
       {{v2 + "/a/cpu.max", "400000 100000\n"}, {v2 + "/a/b/cpu.max", "300000 100000\n"}},
       3,
       v2 + "/a/b/cpu.max"},
      {"a container with the host's path",
       "0::/docker/12ab\n",
       {{v2 + "/cpu.max", "100000 100000\n"}},
       1,
       v2 + "/cpu.max"},
      {"a path outside of the namespace", "0::/../other\n", {{v2 + "/cpu.max", "200000 100000\n"}}, 2, v2 + "/cpu.max"},
      {"version 1",
       "4:memory:/m\n3:cpu,cpuacct:/a/b\n0::/\n",
       {{v1 + "/a/b/cpu.cfs_quota_us", "250000\n"}, {v1 + "/a/b/cpu.cfs_period_us", "100000\n"}},
       3,
       v1 + "/a/b/cpu.cfs_quota_us of 2.5 cores"},
      {"a parent in version 1, in a container",
       "3:cpuacct,cpu:/docker/12ab\n",
       {{v1 + "/cpu.cfs_quota_us", "20000\n"}, {v1 + "/cpu.cfs_period_us", "10000\n"}},
       2,
       v1 + "/cpu.cfs_quota_us"},
      {"another controller", "3:cpuset:/a\n", {{v1 + "/a/cpu.cfs_quota_us", "100000\n"}}, 0, ""},
      {"both versions, the lesser counts",
       "3:cpu:/a\n0::/b\n",
       {{v1 + "/a/cpu.cfs_quota_us", "300000\n"}, {v2 + "/b/cpu.max", "200000 100000\n"}},
       2,
       v2 + "/b/cpu.max"},
      {"mounted elsewhere",
       "3:cpu,cpuacct:/a\n",
       {{mounts, "30 25 0:26 / /cg/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"},
        {"/cg/cpu,cpuacct/a/cpu.cfs_quota_us", "100000\n"}},
       1,
       "/cg/cpu,cpuacct/a/cpu.cfs_quota_us"},
      {"version 2 beside version 1",
       "0::/a\n",
       {{mounts, "30 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"},
        {v2 + "/unified/a/cpu.max", "100000 100000\n"}},
       1,
       v2 + "/unified/a/cpu.max"},
      {"a mount whose root is the container's group",
       "0::/pod/x/y\n",
       {{mounts, "30 25 0:26 /pod/x /sys/fs/cgroup rw - cgroup2 cgroup rw\n"}, {v2 + "/y/cpu.max", "100000 100000\n"}},
       1,
       v2 + "/y/cpu.max"},
  };
  for (const QuotaRow& row : rows) {
    INFO(row.what);
    const test::FakeSystem system;
    system.write("/proc/self/cgroup", row.groups);
    for (const auto& [path, text] : row.files) system.write(path, text);
    const auto quota = kernels::cpu_quota();
    CHECK(quota.value_or(CoreLimit{0, ""}).cores == row.cores);
    if (quota) CHECK_THAT(quota->source, Catch::Contains(row.source));
  }
}

TEST_CASE("the available cores are the least of the mask and the quota, shared by the processes of the host") {
  const int mask = static_cast<int>(process_cores().size());
  const test::FakeSystem system;
  if (available_cores().cores != mask) DP_SKIP("a variable of OpenMP limits this process");
  CHECK(available_cores(mask).cores == 1);
  CHECK(available_cores(3 * mask).cores == 1);
  CHECK(available_cores(0).cores == mask);
  system.write("/proc/self/cgroup", "0::/a\n");
  system.write("/sys/fs/cgroup/a/cpu.max", std::to_string(100'000LL * (mask + 1)) + " 100000\n");
  CHECK(available_cores().cores == mask);
  system.write("/sys/fs/cgroup/a/cpu.max", "70000 100000\n");
  CHECK(available_cores().cores == 1);
  if (mask == 1) DP_SKIP("one core only");
  CHECK(to_string(available_cores()) ==
        "1 core available to this process, limited by the CPU quota /sys/fs/cgroup/a/cpu.max of 0.7 cores");

  const ResolvedOptions by_default = resolved({.devices = cpus(1)});
  CHECK(by_default.options.threads_per_replica == 1);
  CHECK(by_default.threads_notice == "1 thread per replica instead of " + std::to_string(mask) +
                                         ": the CPU quota /sys/fs/cgroup/a/cpu.max of 0.7 cores");
  CHECK_FALSE(by_default.options.pin_threads);
  const ResolvedOptions asked = resolved({.devices = cpus(1), .threads_per_replica = 2});
  CHECK(asked.options.threads_per_replica == 2);
  CHECK(asked.threads_notice.empty());
  CHECK_FALSE(asked.options.pin_threads);
}

#if !defined(DP_THREAD_SANITIZER)
TEST_CASE("a replica made within a parallel region has one thread, one made outside of it is refused there") {
  const DataParallelOptions options{.devices = cpus(1), .threads_per_replica = 2};
  std::thread([&] {
    DataParallel outer(models::mlp({.hidden = {8}}), options);
    CHECK(outer.options().threads_per_replica == 2);
    const Tensor images({4, 1, 28, 28});
    std::string refusal, notice;
#pragma omp parallel num_threads(2)
    if (omp_get_thread_num() == 0) {
      try {
        outer.predict(images);
      } catch (const Error& error) {
        refusal = error.what();
      }
      DataParallel inner(models::mlp({.hidden = {8}}), options);
      notice = inner.threads_notice();
      inner.predict(images);
    }
    CHECK_THAT(refusal, Catch::Contains("2 threads cannot run within the caller's OpenMP parallel region"));
    CHECK_THAT(notice, Catch::Contains("1 thread per replica instead of 2: the caller's OpenMP parallel region"));
  }).join();
}
#endif

}  // namespace
