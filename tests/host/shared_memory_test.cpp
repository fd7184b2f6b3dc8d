// Memory that other processes can map, and how an address in it is found.
#include "kernels/device/host/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <string>

#include "dp/error.h"
#include "support/catch.h"
#include "support/fake_system.h"

using namespace dp;
using namespace dp::kernels;

namespace {

template <typename Work>
std::string error_of(ErrorCode code, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("shared memory is zeroed, of the requested size, and found by every address in it") {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{5000}}) {
    const auto memory = allocate_shared(bytes);
    CHECK(memory->bytes() == bytes);
    auto* const data = static_cast<char*>(memory->data());
    CHECK(std::count(data, data + bytes, '\0') == static_cast<std::ptrdiff_t>(bytes));
    const std::size_t size = std::max<std::size_t>(bytes, 1);
    const SharedPlace first = find_shared(data), last = find_shared(data + size - 1);
    CHECK(first.file >= 0);
    CHECK(first.bytes == size);
    CHECK(first.offset == 0);
    CHECK(last.file == first.file);
    CHECK(last.serial == first.serial);
    CHECK(last.offset == size - 1);
    CHECK(find_shared(data + size).serial != first.serial);
    CHECK(find_shared(data - 1).serial != first.serial);
  }
  int outside = 0;
  const SharedPlace none = find_shared(&outside);
  CHECK(none.file == -1);
  CHECK(none.serial == 0);
  CHECK(none.bytes == 0);
  CHECK(none.offset == 0);
}

TEST_CASE("each allocation of shared memory has its own serial number, and is not found after its end") {
  auto first = allocate_shared(100);
  const auto second = allocate_shared(100);
  const std::uint64_t serial = find_shared(first->data()).serial;
  CHECK(serial > 0);
  CHECK(find_shared(second->data()).serial == serial + 1);
  const void* const address = first->data();
  first.reset();
  CHECK(find_shared(address).file == -1);
  const auto third = allocate_shared(100);
  CHECK(find_shared(third->data()).serial == serial + 2);
}

TEST_CASE("shared memory of a rank is mapped once, and again for another allocation or rank") {
  const auto first = allocate_shared(10000), second = allocate_shared(10000);
  PeerMemory peers({::getpid(), ::getpid()});
  const auto at = [&](int rank, const Buffer& memory, void* data, std::size_t offset) {
    CHECK(memory.bytes() == 10000);
    return static_cast<char*>(peers.at(rank, find_shared(static_cast<char*>(data) + offset)));
  };
  char* const begin = at(0, *first, first->data(), 0);
  CHECK(begin != first->data());
  CHECK(at(0, *first, first->data(), 7000) == begin + 7000);
  char* const other = at(0, *second, second->data(), 3);
  char* const other_rank = at(1, *first, first->data(), 1);
  CHECK(other_rank != begin + 1);
  std::strcpy(static_cast<char*>(first->data()), "first");
  std::strcpy(static_cast<char*>(second->data()), "second");
  CHECK(std::string(begin) == "first");
  CHECK(std::string(other) == "ond");  // "second" without its first three letters
  CHECK(std::string(other_rank) == "irst");
}

TEST_CASE("missing shared memory and shared memory that cannot be mapped are reported with the reason") {
  PeerMemory peers({::getpid(), ::getpid()});
  SharedPlace place;
  place.file = 1 << 20;
  place.serial = 1;
  place.bytes = 100;
  CHECK(error_of(ErrorCode::device, [&] { peers.at(1, place); }) ==
        "the memory of rank 1 cannot be mapped: No such file or directory; use --comm mpi");

  const test::FakeSystem system;
  system.set_available(3000);
  CHECK(allocate_shared(3000 * 1024)->bytes() == 3000 * 1024);
  CHECK(error_of(ErrorCode::device, [] { allocate_shared(3000 * 1024 + 1); }) ==
        "out of memory: 3072001 bytes requested, 3072000 free; use a smaller batch or fewer replicas");
}

TEST_CASE("shared memory above the limit of file sizes is reported with the remedy") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = before;
  limit.rlim_cur = 8192;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  const std::string text = error_of(ErrorCode::io, [] { allocate_shared(8193); });
  const bool fits = allocate_shared(8192)->bytes() == 8192;
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(text == "shared memory of 8193 bytes exceeds the file size limit; raise ulimit -f, or use --comm mpi");
  CHECK(fits);
}
