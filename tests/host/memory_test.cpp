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
std::string error_of(const Work& work) {
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
    text = error_of([] { kernels::allocate_shared(100); });
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
    text = error_of([] { kernels::require_address_space(std::size_t{1} << 41); });
  }
  CHECK_THAT(text,
             Catch::Contains("of which " + std::to_string(kernels::kAddressReserve + 3 * kStack) + " are reserved"));
}
