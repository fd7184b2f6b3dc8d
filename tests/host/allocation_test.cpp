// Replaces this program's allocator to count allocations.
#include <cstdlib>
#include <new>

#include "host/rank_group.h"
#include "support/catch.h"

namespace {
std::atomic<long> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory =
      std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment + (bytes == 0) * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

using namespace dp;
using namespace dp::kernels;

TEST_CASE("steps allocate nothing after the first") {
  ContextOptions options;
  options.threaded_streams = GENERATE(false, true);
  test::RankGroup group(2, options);
  auto handles = group.communicators();
  std::atomic<long> during{0};
  std::atomic<int> warm{0}, done{0};
  group.run([&](int rank) {
    const auto me = static_cast<std::size_t>(rank);
    const auto compute = group.contexts[me]->make_stream(), comm = group.contexts[me]->make_stream();
    const auto ready = group.contexts[me]->make_event(), reduced = group.contexts[me]->make_event();
    std::vector<float> data(4000), whole(8000);
    const std::size_t parts[] = {16000, 16000};
    test::LambdaOp op([&] { data[0] += 1; });
    const auto step = [&](int number) {
      compute->upload(data.data(), &number, sizeof number);
      compute->copy(data.data() + 1, data.data(), 4);
      void* const args[] = {data.data()};
      op.run(*compute, args, nullptr);
      compute->record(*ready);
      comm->wait(*ready);
      handles[me]->reduce(data.data(), 4000, DType::f32, 0, *comm);
      handles[me]->broadcast(data.data(), 4000, DType::f32, 0, *comm);
      handles[me]->gather(data.data(), whole.data(), parts, 1, *comm);
      comm->record(*reduced);
      compute->wait(*reduced);
      op.run(*compute, {}, nullptr);
      group.contexts[me]->flush();
      compute->synchronize();
    };
    step(0);
    const auto synchronise = [&](std::atomic<int>& count) {
      ++count;
      while (count < 2) std::this_thread::yield();
    };
    synchronise(warm);
    const long before = allocations;
    for (int i = 1; i < 20; ++i) step(i);
    during += allocations - before;
    synchronise(done);
  });
  CHECK(during == 0);
}

TEST_CASE("the allocation counter counts") {
  const long before = allocations;
  const auto event = test::BareContext().make_event();
  CHECK(allocations > before);
}
