#include "kernels/host/memory.h"

#include <algorithm>

#include "dp/error.h"
#include "host/rank_group.h"
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
