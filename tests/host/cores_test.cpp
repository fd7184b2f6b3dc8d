#include "kernels/device/host/cores.h"

#include <fcntl.h>
#include <omp.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dp/data_parallel.h"
#include "dp/models.h"
#include "host/rank_group.h"
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

// Runs `body` on a new thread whose inherited affinity mask is one core.
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

TEST_CASE("usable cores are those of the process, whatever the affinity of one thread", "[pinning]") {
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

TEST_CASE("one usable core", "[.one_core]") { CHECK(usable_cores().size() == 1); }  // the next case runs this one

TEST_CASE("a mask of one core is respected unless it comes from OpenMP, MPI or Slurm") {
  if (usable_cores().size() < 2) DP_SKIP("one core only");
  const std::vector<const char*> marks{"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "OMPI_COMM_WORLD_RANK",
                                       "PMI_RANK",      "PMIX_RANK",  "SLURM_CPU_BIND"};
  // Runs this program on one core with this environment variable. Returns whether it counts one usable core.
  const auto counts_one = [&](const std::string& mark) {
    std::vector<std::string> variables;
    for (char** variable = environ; *variable != nullptr; ++variable)
      if (std::none_of(marks.begin(), marks.end(),
                       [&](const char* name) { return std::string(*variable).starts_with(std::string(name) + "="); }))
        variables.emplace_back(*variable);
    if (!mark.empty()) variables.push_back(mark);
    std::vector<char*> pointers;
    for (std::string& variable : variables) pointers.push_back(variable.data());
    pointers.push_back(nullptr);
    int status = -1;
    std::thread narrow([&] {
      pin_current_thread(usable_cores().back());
      posix_spawn_file_actions_t quiet;
      posix_spawn_file_actions_init(&quiet);
      posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
      std::string name = "test_host", filter = "[.one_core]";
      char* words[] = {name.data(), filter.data(), nullptr};
      pid_t child = -1;
      if (::posix_spawn(&child, "/proc/self/exe", &quiet, nullptr, words, pointers.data()) == 0)
        ::waitpid(child, &status, 0);
      posix_spawn_file_actions_destroy(&quiet);
    });
    narrow.join();
    REQUIRE(WIFEXITED(status));
    return WEXITSTATUS(status) == 0;
  };
  CHECK(counts_one(""));
  for (const char* mark : {"OMP_PROC_BIND=false", "OMPI_COMM_WORLD_RANK=0", "PMI_RANK=0", "SLURM_CPU_BIND=quiet"}) {
    INFO(mark);
    CHECK_FALSE(counts_one(mark));
  }
}

TEST_CASE("a pinned thread gets its mask and OpenMP settings back when the last object that pinned it is gone") {
  std::thread([] {
    const std::vector<int> before = mask();
    omp_set_num_threads(3);
    auto first = std::make_unique<ThreadKeeper>();
    const auto bind = [](int threads) {
      ContextOptions options;
      options.threads = threads;
      options.cores.assign(usable_cores().begin(), usable_cores().begin() + threads);
      test::BareContext(options).bind_thread();
    };
    bind(1);
    auto second = std::make_unique<ThreadKeeper>();
    bind(static_cast<int>(std::min<std::size_t>(usable_cores().size(), 2)));
    first.reset();
    CHECK(mask().size() == 1);
    second.reset();
    CHECK(mask() == before);
    CHECK(omp_get_max_threads() == 3);
#if !defined(DP_THREAD_SANITIZER)
    std::atomic<int> pinned{0};
#pragma omp parallel num_threads(2)
    if (mask() != before) ++pinned;
    CHECK(pinned == 0);
#endif
  }).join();
}

TEST_CASE("a binding of OpenMP does not restrict the program to one core", "[pinning]") {
  if (std::thread::hardware_concurrency() < 2) DP_SKIP("one core only");
  // CTest also runs this with OMP_PROC_BIND=true. The first thread's mask is then one core before main.
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
    CHECK(mask() == std::vector<int>{usable_cores().back()});  // unchanged
    CHECK(omp_get_max_threads() == 3);
  });
}

TEST_CASE("bind_thread pins each OpenMP thread to a core of its own", "[pinning]") {
#if defined(DP_THREAD_SANITIZER)
  DP_SKIP("the thread sanitizer does not know libgomp's barriers");
#endif
  if (usable_cores().size() < 2) DP_SKIP("one core only");
  for (int repeat = 0; repeat < 2; ++repeat)  // two replicas, each with its own team
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

TEST_CASE("invalid pins are rejected", "[pinning]") {
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

TEST_CASE("an error of pinning names the core and the cores that the process may use", "[pinning]") {
  std::string usable;
  for (const int core : usable_cores()) usable += (usable.empty() ? "" : ",") + std::to_string(core);
  const auto message = [&](int core) {
    return "cannot run a thread on core " + std::to_string(core) + "; the cores available to this process are " +
           usable;
  };
  std::thread([&] {
    const std::vector<int> before = mask();
    CHECK_THROWS_WITH(pin_current_thread(8191), message(8191));
    CHECK_THROWS_WITH(pin_current_thread(-1), message(-1));
    CHECK(mask() == before);
    pin_current_team({});
    CHECK(mask() == before);
#if !defined(DP_THREAD_SANITIZER)
    for (const std::size_t member : {0, 1}) {
      std::vector<int> cores(2, usable_cores().back());
      cores[member] = 8190;
      CHECK_THROWS_WITH(pin_current_team(cores), message(8190));
    }
#endif
    try {
      pin_current_thread(8191);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::device);
    }
  }).join();
}

TEST_CASE("binding a thread turns off dynamic teams until the last object that bound it is gone", "[pinning]") {
  std::thread([] {
    omp_set_dynamic(1);
    omp_set_num_threads(5);
    {
      const ThreadKeeper keeper;
      ContextOptions options;
      options.threads = 2;
      test::BareContext context(options);
      context.bind_thread();
      CHECK(omp_get_dynamic() == 0);
      CHECK(omp_get_max_threads() == 2);
    }
    CHECK(omp_get_dynamic() == 1);
    CHECK(omp_get_max_threads() == 5);
  }).join();
}

TEST_CASE("the thread that made an engine of one replica gets its mask back when the engine is destroyed",
          "[pinning]") {
  std::thread([] {
    const std::vector<int> before = mask();
    {
      DataParallel net(models::mlp({.hidden = {8}}), {.devices = cpus(1), .threads_per_replica = 1});
      CHECK(mask().size() == 1);
    }
    CHECK(mask() == before);
  }).join();
}
