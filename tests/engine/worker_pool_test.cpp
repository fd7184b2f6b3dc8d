// The worker threads of the replicas: which thread runs what, and the error that a call ends with.
#include "engine/step/worker_pool.h"

#include <atomic>
#include <new>
#include <set>
#include <stdexcept>

#include "dp/error.h"
#include "support/catch.h"

using namespace dp;
using dp::engine::WorkerPool;

namespace {

struct Failure {
  ErrorCode code{};
  std::string text = "no error";
  std::vector<std::string> others;
};

template <typename Work>
Failure failure_of(WorkerPool& pool, Work&& work) {
  try {
    pool.run(work);
  } catch (const Error& error) {
    return {error.code(), error.what(), error.others()};
  }
  return {};
}

}  // namespace

TEST_CASE("worker pool: every call runs once on each worker, and each of several workers has its own thread") {
  for (const int size : {1, 2, 5}) {
    INFO(size << " workers");
    WorkerPool pool(size);
    CHECK(pool.size() == size);
    std::vector<std::vector<std::thread::id>> threads(static_cast<std::size_t>(size));
    for (int call = 0; call < 3; ++call)
      pool.run([&](int rank) { threads[static_cast<std::size_t>(rank)].push_back(std::this_thread::get_id()); });
    std::set<std::thread::id> different;
    for (const auto& own : threads) {
      CHECK(own == std::vector(3, own.front()));
      different.insert(own.front());
    }
    CHECK(different.size() == static_cast<std::size_t>(size));
    CHECK(different.contains(std::this_thread::get_id()) == (size == 1));
    CHECK_FALSE(pool.failed());
  }
}

TEST_CASE("worker pool: the error of the lowest failed worker is thrown, with the other errors in order") {
  WorkerPool pool(5);
  const Failure failure = failure_of(pool, [](int rank) {
    if (rank == 1) throw std::bad_alloc();
    if (rank == 2) throw kernels::Aborted();  // follows from another failure
    if (rank == 3) throw std::runtime_error("three");
    if (rank == 4) throw 4;
  });
  CHECK(failure.code == ErrorCode::device);
  CHECK(failure.text == "out of host memory");
  CHECK(failure.others == std::vector<std::string>{"three", "an exception of unknown type"});
}

TEST_CASE("worker pool: an error keeps its code and text, and another exception is a device's error") {
  for (const int size : {1, 3}) {
    INFO(size << " workers");
    WorkerPool bad(size), strange(size);
    const Failure own = failure_of(bad, [&](int rank) {
      if (rank == size - 1) throw Error(ErrorCode::nonfinite, "not finite");
    });
    CHECK(own.code == ErrorCode::nonfinite);
    CHECK(own.text == "not finite");
    CHECK(own.others.empty());
    const Failure other = failure_of(strange, [&](int rank) {
      if (rank == size - 1) throw std::runtime_error("strange");
    });
    CHECK(other.code == ErrorCode::device);
    CHECK(other.text == "strange");
  }
}

TEST_CASE("worker pool: a failure sets the abort flag, and no later call runs") {
  for (const int size : {1, 3}) {
    INFO(size << " workers");
    WorkerPool pool(size);
    CHECK_FALSE(pool.abort_flag()->load());
    CHECK(failure_of(pool, [](int) { throw Error(ErrorCode::usage, "all fail"); }).others.size() ==
          static_cast<std::size_t>(size - 1));
    CHECK(pool.failed());
    CHECK(pool.abort_flag()->load());
    std::atomic<int> calls{0};
    CHECK_THROWS_AS(pool.run([&](int) { ++calls; }), kernels::Aborted);
    CHECK(calls == 0);
  }
}

TEST_CASE("worker pool: a call that ends only because of the abort flag throws Aborted") {
  WorkerPool pool(3);
  CHECK_THROWS_AS(pool.run([](int rank) {
    if (rank != 0) throw kernels::Aborted();
  }),
                  kernels::Aborted);
  WorkerPool flagged(2);
  flagged.abort_flag()->store(true);
  std::atomic<int> calls{0};
  CHECK_THROWS_AS(flagged.run([&](int) { ++calls; }), kernels::Aborted);
  CHECK(calls == 0);
}
