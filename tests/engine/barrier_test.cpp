#include "engine/step/worker_pool.h"

#include <array>
#include <thread>
#include <vector>

#include "support/catch.h"

using namespace dp;
using dp::engine::Barrier;

TEST_CASE("barrier: all workers learn in each round whether all agreed") {
  constexpr int kWorkers = 3;
  // Each worker's answer in each round.
  const std::vector<std::array<bool, kWorkers>> rounds{{true, true, true},    {true, false, true}, {true, true, true},
                                                       {false, false, false}, {true, true, false}, {true, true, true}};
  Barrier barrier(kWorkers, nullptr);
  std::array<std::vector<bool>, kWorkers> heard;
  std::vector<std::thread> workers;
  for (std::size_t worker = 0; worker < kWorkers; ++worker)
    workers.emplace_back([&, worker] {
      for (const auto& answers : rounds) heard[worker].push_back(barrier.arrive_and_wait(answers[worker]));
    });
  for (std::thread& worker : workers) worker.join();
  for (const std::vector<bool>& own : heard) CHECK(own == std::vector<bool>{true, false, true, false, false, true});
}

TEST_CASE("barrier: an abort ends the wait for a worker that does not come") {
  kernels::AbortFlag abort{false};
  Barrier barrier(2, &abort);
  bool aborted = false;
  std::thread worker([&] {
    try {
      barrier.arrive_and_wait();
    } catch (const kernels::Aborted&) {
      aborted = true;
    }
  });
  abort = true;
  worker.join();
  CHECK(aborted);
}
