#include "kernels/device/host/memory.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "dp/error.h"
#include "host/rank_group.h"
#include "support/catch.h"
#include "support/fake_system.h"

using namespace dp;
using kernels::ContextOptions;

namespace {

// Sets the soft limit of a resource during its lifetime.
class SoftLimit {
 public:
  SoftLimit(decltype(RLIMIT_AS) resource, rlim_t limit) : resource_(resource) {
    REQUIRE(::getrlimit(resource_, &before_) == 0);
    rlimit now = before_;
    now.rlim_cur = limit;
    REQUIRE(::setrlimit(resource_, &now) == 0);
  }
  ~SoftLimit() { ::setrlimit(resource_, &before_); }
  SoftLimit(const SoftLimit&) = delete;
  SoftLimit& operator=(const SoftLimit&) = delete;

 private:
  decltype(RLIMIT_AS) resource_;
  rlimit before_{};
};

// Sets the stack size of new threads during its lifetime.
class DefaultStack {
 public:
  explicit DefaultStack(std::size_t bytes) {
    REQUIRE(::pthread_getattr_default_np(&before_) == 0);
    pthread_attr_t now;
    REQUIRE(::pthread_getattr_default_np(&now) == 0);
    ::pthread_attr_setstacksize(&now, bytes);
    ::pthread_setattr_default_np(&now);
    ::pthread_attr_destroy(&now);
  }
  ~DefaultStack() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }
  DefaultStack(const DefaultStack&) = delete;
  DefaultStack& operator=(const DefaultStack&) = delete;

 private:
  pthread_attr_t before_;
};

template <typename Work>
std::string message_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("device memory is aligned, zeroed and of the requested size") {
  test::BareContext context;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{4} << 20, std::size_t{2200000}}) {
    auto buffer = context.allocate(bytes);
    CHECK(buffer->bytes() == bytes);
    REQUIRE(buffer->data() != nullptr);
    const auto address = reinterpret_cast<std::uintptr_t>(buffer->data());
    CHECK(address % (bytes >= (2u << 20) ? 2u << 20 : 64u) == 0);
    auto* data = static_cast<unsigned char*>(buffer->data());
    CHECK(std::all_of(data, data + bytes, [](unsigned char byte) { return byte == 0; }));
    std::fill(data, data + bytes,
              static_cast<unsigned char>(255));  // reused memory is not zero by chance
  }
}

TEST_CASE("requesting more memory than is free is an error with both numbers") {
  test::BareContext context;
  const std::size_t free = kernels::free_host_memory();
  CHECK(free > (1u << 20));
  for (const std::size_t bytes : {free * 2, std::size_t{1} << 60, ~std::size_t{0}}) {
    try {
      context.allocate(bytes);
      FAIL("allocated");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::device);
      CHECK_THAT(error.what(), Catch::Contains(std::to_string(bytes) + " bytes requested") && Catch::Contains(" free"));
    }
  }
}

TEST_CASE("Buffer::read copies a part of the buffer") {
  for (const bool shared : {false, true}) {
    const auto buffer = shared ? kernels::allocate_shared(1000) : kernels::allocate_host(1000);
    std::memset(buffer->data(), 7, 1000);
    std::array<unsigned char, 10> copy{};
    buffer->read(copy.data(), static_cast<std::byte*>(buffer->data()) + 5, 9);
    CHECK(std::count(copy.begin(), copy.end(), 7) == 9);
    CHECK(copy.back() == 0);
  }
}

TEST_CASE("if no file descriptor is free, allocating shared memory reports the reason") {
  std::string text;
  {
    const SoftLimit files(RLIMIT_NOFILE, 0);
    text = message_of([] { kernels::allocate_shared(100); });
  }
  CHECK(text == "cannot create shared memory: Too many open files");
}

TEST_CASE("StackReserve uses the stack size of new threads") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  DP_SKIP("the sanitizers' shadow memory does not fit in any limit");
#endif
  constexpr std::size_t kStack = std::size_t{24} << 20;
  std::string text;
  {
    const DefaultStack stack(kStack);
    const SoftLimit space(RLIMIT_AS, rlim_t{1} << 40);
    const kernels::StackReserve reserve(3);
    text = message_of([] { kernels::require_address_space(std::size_t{1} << 41); });
  }
  CHECK_THAT(text,
             Catch::Contains(", and " + std::to_string(kernels::kAddressReserve + 3 * kStack) + " must stay free"));
}

TEST_CASE("the stacks of a context's threads are reserved while it exists") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  DP_SKIP("the sanitizers' shadow memory does not fit in any limit");
#endif
  constexpr std::size_t kStack = std::size_t{24} << 20;
  std::string none, three;
  {
    const DefaultStack stack(kStack);
    const SoftLimit space(RLIMIT_AS, rlim_t{1} << 40);
    const auto refused = [] { return message_of([] { kernels::require_address_space(std::size_t{1} << 41); }); };
    {
      ContextOptions options;
      options.threads = 4;  // three of a team
      const test::BareContext context(options), single;
      three = refused();
    }
    none = refused();
  }
  const auto reserved = [](std::size_t bytes) {
    return Catch::EndsWith(" free, and " + std::to_string(kernels::kAddressReserve + bytes) +
                           " must stay free; raise ulimit -v and -d, or use fewer replicas or threads");
  };
  CHECK_THAT(three, Catch::StartsWith("out of address space: 2199023255552 bytes requested, ") && reserved(3 * kStack));
  CHECK_THAT(none, Catch::StartsWith("out of address space: 2199023255552 bytes requested, ") && reserved(0));
}

TEST_CASE("the free address space is the limit less the used space and the reserve") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  DP_SKIP("the sanitizers' shadow memory does not fit in any limit");
#endif
  rlimit data_limit{}, space_limit{};
  ::getrlimit(RLIMIT_DATA, &data_limit);
  ::getrlimit(RLIMIT_AS, &space_limit);
  if (data_limit.rlim_max != RLIM_INFINITY || space_limit.rlim_max != RLIM_INFINITY)
    DP_SKIP("the address space of this process is limited");
  constexpr std::size_t kLimit = std::size_t{1} << 40, kNear = std::size_t{64} << 20;  // of used memory that changes
  const auto near = [](std::size_t value, std::size_t expected) {
    return value + kNear > expected && value < expected + kNear;
  };
  std::array<std::size_t, 6> pages{};
  std::ifstream file("/proc/self/statm");
  for (std::size_t& count : pages) file >> count;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::size_t free = 0, of_data = 0;
  bool fits = true, refused = false;
  {
    const SoftLimit data(RLIMIT_DATA, RLIM_INFINITY);
    const SoftLimit space(RLIMIT_AS, kLimit);
    free = kernels::free_address_space();
    fits = message_of([&] { kernels::require_address_space(free - kernels::kAddressReserve - kNear); }).empty();
    refused = !message_of([&] { kernels::require_address_space(free - kernels::kAddressReserve + kNear); }).empty();
    const SoftLimit less(RLIMIT_DATA, kLimit / 2);
    of_data = kernels::free_address_space();
  }
  CHECK(near(free, kLimit - pages[0] * page));
  CHECK(fits);
  CHECK(refused);
  CHECK(near(of_data, kLimit / 2 - pages[5] * page));
  const SoftLimit data(RLIMIT_DATA, RLIM_INFINITY), space(RLIMIT_AS, RLIM_INFINITY);
  CHECK(kernels::free_address_space() == ~std::size_t{0});
}

TEST_CASE("memory is rounded up to lines of the cache, and from 2 MiB on to huge pages") {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  const std::pair<std::size_t, std::size_t> rows[] = {{0, 64},
                                                      {1, 64},
                                                      {64, 64},
                                                      {65, 128},
                                                      {kHuge - 64, kHuge - 64},
                                                      {kHuge - 1, kHuge},
                                                      {kHuge, kHuge},
                                                      {kHuge + 1, 2 * kHuge},
                                                      {3 * kHuge, 3 * kHuge}};
  for (const auto& [bytes, rounded] : rows) {
    INFO(bytes);
    CHECK(kernels::resident_bytes(bytes) == rounded);
  }
  CHECK(reinterpret_cast<std::uintptr_t>(kernels::allocate_host(kHuge)->data()) % kHuge == 0);
}

TEST_CASE("memory of 2 MiB and more must be free, and the error has both numbers") {
  const test::FakeSystem system;
  system.set_available(3000);
  constexpr std::size_t kFree = 3000 * 1024;
  CHECK(kernels::allocate_host(kFree)->bytes() == kFree);
  CHECK(message_of([] { kernels::allocate_host(kFree + 1); }) ==
        "out of memory: 3072001 bytes requested, 3072000 free; use a smaller batch or fewer replicas");
  system.set_available(1000);
  CHECK(message_of([] { kernels::allocate_host(std::size_t{2} << 20); }) ==
        "out of memory: 2097152 bytes requested, 1024000 free; use a smaller batch or fewer replicas");
  CHECK(kernels::allocate_host((std::size_t{2} << 20) - 1)->bytes() == 2097151);  // not checked
  const test::FakeSystem unknown;
  CHECK(message_of([] { kernels::allocate_host(~std::size_t{0}); }) ==
        "out of memory: 18446744073709551615 bytes requested, an unknown number of free; use a smaller batch or fewer "
        "replicas");
}

TEST_CASE("an allocation that fits only in the reserved address space is refused") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  DP_SKIP("the sanitizers' shadow memory does not fit in any limit");
#endif
  std::size_t used = 0;  // pages
  std::ifstream("/proc/self/statm") >> used;
  used *= static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::string text;
  {
    const SoftLimit space(RLIMIT_AS, used + kernels::kAddressReserve / 2);
    text = message_of([] { kernels::allocate_host(5000); });
  }
  CHECK_THAT(text, Catch::StartsWith("out of address space: 5056 bytes requested, "));
}
