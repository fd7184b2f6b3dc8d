// After the first calls, the communication thread and its stream allocate nothing.
#include <atomic>
#include <cstdlib>
#include <new>

#include "comm/wired_ranks.h"
#include "support/catch.h"

namespace {
std::atomic<bool> counting{false};
std::atomic<long> allocations{0};

void* counted(std::size_t bytes) {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
  void* const p = std::malloc(bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

TEST_CASE("wire: nothing is allocated after the first calls") {
  WiredRankGroup group(3);
  group.run([&](int rank) {
    const auto me = static_cast<std::size_t>(rank);
    const auto comm = group.join(rank);
    const auto stream = group.contexts[me]->make_stream();
    std::vector<float> data(400000), whole(900);
    const std::vector<std::size_t> parts{100, 0, 700};
    const auto calls = [&](std::int64_t count) {
      comm->all_reduce(data.data(), count, DType::f32, *stream);
      comm->reduce(data.data(), count, DType::f32, 1, *stream);
      comm->reduce_scatter(data.data(), count, DType::f32, *stream);
      comm->all_gather(data.data(), count, DType::f32, *stream);
      comm->broadcast(data.data(), count, DType::f32, 2, *stream);
      comm->gather(data.data(), whole.data(), parts, 0, *stream);
      comm->scatter(whole.data(), data.data(), parts, 0, *stream);
      stream->synchronize();
    };
    calls(400000);
    counting = true;
    for (int round = 0; round < 5; ++round) calls(400000);
    calls(7);
    counting = false;
  });
  CHECK(allocations == 0);
}
