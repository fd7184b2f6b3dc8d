// Device and pinned host memory: allocation, queries, and which copies are refused.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "simulated_cuda/device/launch.h"
#include "simulated_cuda/planted/kernels.h"
#include "simulated_cuda/rig.h"
#include "support/catch.h"

namespace dp::simt::test {
namespace {

void* allocate(std::size_t bytes) {
  void* memory = nullptr;
  ok(cudaMalloc(&memory, bytes));
  return memory;
}

std::size_t free_bytes() {
  std::size_t free = 0, total = 0;
  ok(cudaMemGetInfo(&free, &total));
  CHECK(total == simulation().device_memory);
  return free;
}

struct PaddedNumbers {
  long long wide[60];  // so many that the compiler copies the struct as bytes, with its padding
  unsigned narrow;     // and four bytes of padding
};
void read_nothing(PaddedNumbers) {}

}  // namespace

TEST_CASE("a SIGSEGV that a process sends itself reaches the previous handler") {
  const FreshSimulation fresh;
  for (const sighandler_t previous : {SIG_DFL, static_cast<sighandler_t>([](int) { ::_exit(7); })}) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::signal(SIGSEGV, previous);
      ok(cudaFree(allocate(1)));  // installs the simulation's handler
      ::raise(SIGSEGV);
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK((previous == SIG_DFL ? WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV
                               : WIFEXITED(status) && WEXITSTATUS(status) == 7));
  }
}

TEST_CASE("the padding of a kernel's parameter is not taken for half of a pointer") {
  const FreshSimulation fresh;
  const TestStream stream;
  const void* const address = DeviceArray<int>(4).get();  // of the device, and freed at once
  std::vector<char> bytes(sizeof(PaddedNumbers));
  std::memcpy(&bytes[sizeof PaddedNumbers::wide], &address, sizeof address);
  const PaddedNumbers& numbers = *reinterpret_cast<const PaddedNumbers*>(bytes.data());
  kernels::cuda::launch({"read_nothing", dim3(1), dim3(1), stream}, read_nothing, numbers);
  stream.finish();
  CHECK(take_reports().empty());
}

TEST_CASE("a device has limited memory, and freed memory can be allocated again") {
  const FreshSimulation fresh;
  simulation().device_memory = 1 << 20;
  void* const half = allocate(1 << 19);
  CHECK(free_bytes() == 1 << 19);
  void* none = half;
  CHECK(cudaMalloc(&none, (1 << 19) + 1) == cudaErrorMemoryAllocation);
  CHECK(none == nullptr);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK_THROWS_WITH(kernels::cuda::device_memory(1 << 20), Catch::Contains("524288 free"));
  CHECK(live().allocations == 1);
  ok(cudaFree(half));
  CHECK(free_bytes() == 1 << 20);
  CHECK(live().allocations == 0);
  ok(cudaMalloc(&none, 0));
  CHECK(none == nullptr);
}

TEST_CASE("the k-th allocation fails on request") {
  const FreshSimulation fresh;
  simulation().fail_allocation = 3;
  std::vector<kernels::cuda::DeviceMemory> had;
  had.push_back(kernels::cuda::device_memory(16));
  had.push_back(kernels::cuda::device_memory(16));
  CHECK_THROWS_AS(kernels::cuda::device_memory(16), Error);
  had.push_back(kernels::cuda::device_memory(16));
  simulation().fail_host_allocation = 1;
  CHECK_THROWS_AS(kernels::cuda::pinned_memory(16), Error);
  CHECK(kernels::cuda::pinned_memory(16).get() != nullptr);
}

TEST_CASE("cudaPointerGetAttributes distinguishes device, pinned and pageable memory") {
  const FreshSimulation fresh(2);
  ok(cudaSetDevice(1));
  const DeviceArray<float> x(10);
  const auto pinned = kernels::cuda::pinned_memory(64);
  int plain = 0;
  cudaPointerAttributes attributes;
  ok(cudaPointerGetAttributes(&attributes, x.get() + 3));
  CHECK((attributes.type == cudaMemoryTypeDevice && attributes.device == 1));
  ok(cudaPointerGetAttributes(&attributes, pinned.get()));
  CHECK((attributes.type == cudaMemoryTypeHost && attributes.hostPointer == pinned.get()));
  ok(cudaPointerGetAttributes(&attributes, &plain));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
}

TEST_CASE("copies work in all directions") {
  const FreshSimulation fresh;
  const TestStream stream;
  std::vector<int> from{1, 2, 3, 4}, to(4);
  const DeviceArray<int> a(4), b(4);
  ok(cudaMemcpyAsync(a, from.data(), 16, cudaMemcpyDefault, stream));
  ok(cudaMemcpyAsync(b, a, 16, cudaMemcpyDeviceToDevice, stream));
  ok(cudaMemsetAsync(b.get() + 1, 0, 4, stream));
  ok(cudaMemcpyAsync(to.data(), b, 16, cudaMemcpyDeviceToHost, stream));
  stream.finish();
  CHECK(to == std::vector<int>{1, 0, 3, 4});
  ok(cudaMemcpyAsync(to.data(), from.data(), 16, cudaMemcpyHostToHost, stream));
  stream.finish();
  CHECK(to == from);
}

TEST_CASE("invalid copies are rejected") {
  const FreshSimulation fresh(2);
  const TestStream stream;
  const DeviceArray<int> x(4);
  ok(cudaSetDevice(1));
  const DeviceArray<int> other(4);
  ok(cudaSetDevice(0));
  int host[8] = {};
  const auto refused = [&](void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, bytes, kind, stream);
  };
  CHECK(refused(x, host, 20, cudaMemcpyDefault) == cudaErrorInvalidValue);            // too long
  CHECK(refused(x.get() + 1, host, 16, cudaMemcpyDefault) == cudaErrorInvalidValue);  // past the end
  CHECK(refused(x.get() + 64, host, 4, cudaMemcpyDefault) == cudaErrorInvalidValue);  // outside any allocation
  CHECK(refused(nullptr, host, 4, cudaMemcpyDefault) == cudaErrorInvalidValue);
  CHECK(refused(x, host, 16, cudaMemcpyDeviceToHost) == cudaErrorInvalidMemcpyDirection);
  CHECK(refused(host, x, 16, cudaMemcpyHostToDevice) == cudaErrorInvalidMemcpyDirection);
  CHECK(refused(other, host, 16, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);  // memory of another device
  CHECK(refused(other, x, 16, cudaMemcpyDefault) == cudaErrorInvalidValue);          // no peer access
  CHECK(cudaMemcpyPeerAsync(other, 0, x, 1, 16, stream) == cudaErrorInvalidValue);   // devices swapped
  CHECK(cudaMemsetAsync(other, 0, 16, stream) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(host, 0, 16, stream) == cudaErrorInvalidValue);
  CHECK(cudaFree(host) == cudaErrorInvalidValue);
  CHECK(cudaFree(x.get() + 1) == cudaErrorInvalidValue);
  CHECK(cudaFreeHost(host) == cudaErrorInvalidValue);
  ok(refused(x, host, 0, cudaMemcpyDefault));
  cudaGetLastError();
}

TEST_CASE("cudaFree waits for the device") {
  const FreshSimulation fresh;
  const TestStream stream;
  const DeviceArray<float> x(std::vector<float>(100, 1));
  {
    const DeviceArray<float> y(100);
    for (int i = 0; i < 20; ++i) add_one(x, y, 100, stream);
  }
  stream.finish();
  CHECK(take_reports().empty());
}

TEST_CASE("fresh memory is NaN") {
  const FreshSimulation fresh;
  const DeviceArray<float> x(10);
  for (const float value : x.values()) CHECK(value != value);
}

TEST_CASE("live resources are counted") {
  const FreshSimulation fresh;
  const DeviceArray<float> x(10);
  const auto pinned = kernels::cuda::pinned_memory(64);
  const TestStream stream;
  const auto event = kernels::cuda::make_event_handle();
  const Live now = live();
  CHECK((now.allocations == 1 && now.bytes == 256 && now.pinned == 1 && now.streams == 1 && now.events == 1));
}

}  // namespace dp::simt::test
