// Counts the allocations of execute(). oneDNN's own small allocations are excluded by their caller.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels_cpu/cpu_case.h"
#include "support/catch.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int> ours{0};

void count(const void* caller) {
  if (!counting.load(std::memory_order_relaxed)) return;
  Dl_info info;
  const bool theirs =
      dladdr(caller, &info) != 0 && info.dli_fname != nullptr && std::strstr(info.dli_fname, "libdnnl") != nullptr;
  if (!theirs) ++ours;
}

void* take(std::size_t bytes, const void* caller) {
  count(caller);
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return take(bytes, __builtin_return_address(0)); }
void* operator new[](std::size_t bytes) { return take(bytes, __builtin_return_address(0)); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  count(__builtin_return_address(0));
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

TEST_CASE("CPU ops allocate nothing while they run") {
  for (dp::test::CpuCase& c : dp::test::every_cpu_op(2)) {
    c.run();
    ours = 0;
    counting = true;
    c.run();
    counting = false;
    INFO(c.name << ", " << c.op->implementation());
    CHECK(ours == 0);
  }
  counting = true;  // checks that the counter works
  ours = 0;
  delete new int;
  const std::vector<int> made(1000);
  counting = false;
  CHECK(ours >= 1);
}
