#include "kernels/host/memory.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "dp/error.h"
#include "host/rank_group.h"
#include "kernels/host/shared_memory.h"
#include "support/catch.h"

using namespace dp;

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

TEST_CASE("a buffer's contents are read into other memory") {
  for (const bool shared : {false, true}) {
    const auto buffer = shared ? kernels::allocate_shared(1000) : kernels::allocate_host(1000);
    std::memset(buffer->data(), 7, 1000);
    std::array<unsigned char, 10> copy{};
    buffer->read(copy.data(), static_cast<std::byte*>(buffer->data()) + 5, 9);
    CHECK(std::count(copy.begin(), copy.end(), 7) == 9);
    CHECK(copy.back() == 0);
  }
}

TEST_CASE("shared memory without a free file descriptor is an error with the reason") {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit none = before;
  none.rlim_cur = 0;
  ::setrlimit(RLIMIT_NOFILE, &none);
  std::string text;
  try {
    kernels::allocate_shared(100);
  } catch (const Error& error) {
    text = error.what();
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  CHECK(text == "cannot create shared memory: Too many open files");
}

TEST_CASE("the address space reserved for a thread's stack has the size of new threads' stacks") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  DP_SKIP("the sanitizers' shadow memory does not fit in any limit");
#endif
  pthread_attr_t before, larger;
  ::pthread_getattr_default_np(&before);
  ::pthread_getattr_default_np(&larger);
  constexpr std::size_t kStack = std::size_t{24} << 20;
  ::pthread_attr_setstacksize(&larger, kStack);
  ::pthread_setattr_default_np(&larger);
  rlimit unlimited{};
  ::getrlimit(RLIMIT_AS, &unlimited);
  rlimit limited = unlimited;
  limited.rlim_cur = std::size_t{1} << 40;
  ::setrlimit(RLIMIT_AS, &limited);
  std::string text;
  try {
    const kernels::StackReserve reserve(3);
    kernels::require_address_space(std::size_t{1} << 41);
  } catch (const Error& error) {
    text = error.what();
  }
  ::setrlimit(RLIMIT_AS, &unlimited);
  ::pthread_setattr_default_np(&before);
  ::pthread_attr_destroy(&before);
  ::pthread_attr_destroy(&larger);
  CHECK_THAT(text,
             Catch::Contains("of which " + std::to_string(kernels::kAddressReserve + 3 * kStack) + " are reserved"));
}
