#include "kernels/host/cores.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>

#include "host/host_world.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::kernels;

namespace {

std::vector<int> mask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

// On a fresh thread whose inherited mask is one core.
template <typename Body>
void on_narrowed_thread(Body body) {
  std::thread outer([&] {
    pin_current_thread(usable_cores().front());
    std::thread(body).join();
  });
  outer.join();
}

std::vector<int> sorted(std::vector<int> cores) {
  std::sort(cores.begin(), cores.end());
  return cores;
}

}  // namespace

TEST_CASE("usable cores are those of the process, whatever one thread was narrowed to", "[pinning]") {
  const std::vector<int> usable = usable_cores();
  REQUIRE_FALSE(usable.empty());
  const std::vector<int> in_order = sorted(usable);
  CHECK(std::adjacent_find(in_order.begin(), in_order.end()) == in_order.end());
  on_narrowed_thread([&] {
    const std::vector<int> narrowed = mask(), still = usable_cores();
    unpin_current_thread();
    const std::vector<int> widened = mask();
    CHECK(narrowed.size() == 1);
    CHECK(still == usable);
    CHECK(widened == sorted(usable));
  });
}

TEST_CASE("a binding OpenMP does not leave us with one core", "[pinning]") {
  if (std::thread::hardware_concurrency() < 2) DP_SKIP("one core only");
  // CTest runs this with OMP_PROC_BIND=true as well: the first thread's mask is then one core before main.
  std::vector<int> permitted;
  std::thread probe([&] {
    cpu_set_t all;
    for (int core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &all);
    sched_setaffinity(0, sizeof all, &all);
    permitted = mask();
  });
  probe.join();
  if (permitted.size() < 2) DP_SKIP("the process may use one core only");
  CHECK(usable_cores().size() > 1);
}

TEST_CASE("bind_thread pins its thread and sets its OpenMP threads", "[pinning]") {
  on_narrowed_thread([] {
    ContextOptions options;
    options.cores = {usable_cores().back()};
    test::BareContext last(options);
    last.bind_thread();
    last.bind_thread();
    CHECK(mask() == options.cores);
    CHECK(sched_getcpu() == options.cores[0]);
    CHECK(omp_get_max_threads() == 1);

    options.cores = {usable_cores().front()};
    test::BareContext first(options);
    first.bind_thread();
    CHECK(mask() == options.cores);
    last.bind_thread();
    CHECK(mask() == std::vector<int>{usable_cores().back()});

    options.cores.clear();
    options.threads = 3;
    test::BareContext free(options);
    free.bind_thread();
    CHECK(mask() == std::vector<int>{usable_cores().back()});  // left alone
    CHECK(omp_get_max_threads() == 3);
  });
}

TEST_CASE("bind_thread pins each OpenMP thread to a core of its own", "[pinning]") {
#if defined(DP_THREAD_SANITIZER)
  DP_SKIP("the thread sanitizer does not know libgomp's barriers");
#endif
  if (usable_cores().size() < 2) DP_SKIP("one core only");
  for (int repeat = 0; repeat < 2; ++repeat)  // two replicas, each its own team
    on_narrowed_thread([] {
      ContextOptions options;
      options.threads = static_cast<int>(std::min<std::size_t>(usable_cores().size(), 4));
      options.cores.assign(usable_cores().rbegin(), usable_cores().rbegin() + options.threads);
      test::BareContext context(options);
      context.bind_thread();
      std::vector<std::vector<int>> masks(static_cast<std::size_t>(options.threads));
      std::vector<int> running(masks.size(), -1);
#pragma omp parallel
      {
        const auto member = static_cast<std::size_t>(omp_get_thread_num());
        masks.at(member) = mask();
        running.at(member) = sched_getcpu();
      }
      for (std::size_t i = 0; i < masks.size(); ++i) {
        CHECK(masks[i] == std::vector<int>{options.cores[i]});
        CHECK(running[i] == options.cores[i]);
      }
    });
}

TEST_CASE("impossible pins are refused", "[pinning]") {
  ContextOptions options;
  options.threads = 2;
  options.cores = {0};
  CHECK_THROWS_WITH(test::BareContext(options), Catch::Contains("one core per thread"));
  options.threads = 0;
  CHECK_THROWS_AS(test::BareContext(options), Error);
  options.threads = 1;
  for (const int core : {-1, 8000, 100000}) {
    options.cores = {core};
    test::BareContext context(options);
    CHECK_THROWS_WITH(context.bind_thread(), Catch::Contains("core " + std::to_string(core)));
  }
}
