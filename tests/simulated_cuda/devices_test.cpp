// Several devices: peer access, device properties, and sticky errors.
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "simulated_cuda/kernels/primitives.h"
#include "simulated_cuda/planted/kernels.h"
#include "simulated_cuda/rig.h"
#include "support/catch.h"

namespace dp::simt::test {
namespace {

constexpr int kDeviceElements = 100;

bool can_access(int from, int to) {
  int can = -1;
  ok(cudaDeviceCanAccessPeer(&can, from, to));
  return can != 0;
}

// Copies ones from device 0 to device 1 and returns what arrives.
std::vector<float> copied_to_peer() {
  ok(cudaSetDevice(1));
  const DeviceArray<float> to(kDeviceElements);
  ok(cudaSetDevice(0));
  const DeviceArray<float> from(std::vector<float>(kDeviceElements, 1));
  const TestStream stream;
  ok(cudaMemcpyPeerAsync(to, 1, from, 0, from.bytes(), stream));
  stream.finish();
  return to.values();
}

}  // namespace

TEST_CASE("devices are counted, selected and named") {
  const FreshSimulation fresh(3);
  int count = 0, current = -1;
  ok(cudaGetDeviceCount(&count));
  CHECK(count == 3);
  ok(cudaSetDevice(2));
  ok(cudaGetDevice(&current));
  CHECK(current == 2);
  CHECK(cudaSetDevice(3) == cudaErrorInvalidDevice);
  CHECK(cudaSetDevice(-1) == cudaErrorInvalidDevice);
  char bus[32];
  ok(cudaDeviceGetPCIBusId(bus, sizeof bus, 2));
  CHECK(std::string(bus) == "0000:03:00.0");
  cudaDeviceProp properties;
  ok(cudaGetDeviceProperties(&properties, 1));
  CHECK(std::string(properties.name) == "simulated GPU 1");
  CHECK((properties.major == 9 && properties.minor == 0));
  int value = 0;
  ok(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
  CHECK(value == properties.multiProcessorCount);
  simulation().devices = 0;
  CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
  cudaGetLastError();
}

TEST_CASE("the environment sets the defaults") {
  setenv("DP_SIMULATED_GPUS", "5", 1);
  setenv("DP_SIMULATED_PEERS", "all", 1);
  setenv("DP_SIMULATED_ORDER", "reverse", 1);
  setenv("DP_SIMULATED_ASYNC_COPY", "lazy", 1);
  setenv("DP_SIMULATED_SEED", "7", 1);
  reset();
  CHECK(simulation().devices == 5);
  CHECK(simulation().peers[1][4] == Peer::works);
  CHECK(simulation().order == ThreadOrder::reverse);
  CHECK(simulation().async_copy == AsyncCopy::lazy);
  CHECK(simulation().seed == 7);
  for (const char* name : {"DP_SIMULATED_GPUS", "DP_SIMULATED_PEERS", "DP_SIMULATED_ORDER", "DP_SIMULATED_ASYNC_COPY",
                           "DP_SIMULATED_SEED"})
    unsetenv(name);
  reset();
  CHECK(simulation().devices == 1);
}

TEST_CASE("peer access is enabled once per pair of a matrix") {
  const FreshSimulation fresh(3);
  simulation().peers[0][1] = Peer::works;
  CHECK(can_access(0, 1));
  CHECK_FALSE(can_access(1, 0));
  CHECK_FALSE(can_access(0, 2));
  CHECK(cudaDeviceEnablePeerAccess(2, 0) == cudaErrorPeerAccessUnsupported);
  ok(cudaDeviceEnablePeerAccess(1, 0));
  CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessAlreadyEnabled);
  cudaGetLastError();  // the error is reported nevertheless, as by compute-sanitizer
  CHECK(take_reports() ==
        std::vector<std::string>{"cudaDeviceEnablePeerAccess returned cudaErrorPeerAccessUnsupported",
                                 "cudaDeviceEnablePeerAccess returned cudaErrorPeerAccessAlreadyEnabled"});
  ok(cudaSetDevice(1));
  const DeviceArray<float> x(std::vector<float>(kDeviceElements, 1));
  ok(cudaSetDevice(0));
  const TestStream stream;
  const DeviceArray<float> y(kDeviceElements);
  add_one(x, y, kDeviceElements, stream);
  stream.finish();
  CHECK(y.values() == std::vector<float>(kDeviceElements, 2));
  CHECK(take_reports().empty());
}

TEST_CASE("copies between devices go through the host without peer access, and are corrupted on a corrupting path") {
  const FreshSimulation fresh(2);
  const std::vector<float> ones(kDeviceElements, 1);
  CHECK(copied_to_peer() == ones);
  simulation().set_peers(Peer::corrupts);
  CHECK(copied_to_peer() == ones);
  CHECK(can_access(0, 1));
  ok(cudaSetDevice(0));
  ok(cudaDeviceEnablePeerAccess(1, 0));
  CHECK(copied_to_peer() != ones);
  simulation().set_peers(Peer::works);
  CHECK(copied_to_peer() == ones);
}

TEST_CASE("a failed kernel leaves an error on its device and no other") {
  const FreshSimulation fresh(2);
  ok(cudaSetDevice(1));
  const TestStream other;
  ok(cudaSetDevice(0));
  const TestStream stream;
  const DeviceArray<float> x(std::vector<float>(kDeviceElements, 0));
  trap(stream);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
  CHECK(cudaMemsetAsync(x, 1, 4, stream) == cudaErrorLaunchFailure);
  CHECK_THROWS_WITH(trap(stream), Catch::Contains("cudaErrorLaunchFailure"));
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);  // the error is sticky
  CHECK(take_reports().size() == 1);
  CHECK(cudaStreamSynchronize(other) == cudaSuccess);
}

TEST_CASE("work that waits for a failed device never ends, and a host that waits for it is reported") {
  const FreshSimulation fresh(3);
  const TestStream first;
  const auto event = kernels::cuda::make_event_handle();
  const DeviceArray<float> x(std::vector<float>(kDeviceElements, 0));
  ok(cudaSetDevice(1));
  const auto second = std::make_unique<TestStream>();
  const auto behind = kernels::cuda::make_event_handle();
  ok(cudaSetDevice(2));
  const TestStream third;
  ok(cudaSetDevice(0));
  add_one(x, x, kDeviceElements, first);
  ok(cudaEventRecord(event.get(), first));
  ok(cudaStreamSynchronize(first));
  simulation().failing_kernel = {.device = 0, .number = 1};
  ok(cudaStreamWaitEvent(*second, event.get(), 0));  // waits for the work before the failure
  second->finish();
  add_one(x, x, kDeviceElements, first);
  cudaEventRecord(event.get(), first);
  CHECK(cudaStreamSynchronize(first) == cudaErrorIllegalAddress);
  CHECK(cudaEventSynchronize(event.get()) == cudaErrorIllegalAddress);
  ok(cudaStreamWaitEvent(*second, event.get(), 0));
  ok(cudaEventRecord(behind.get(), *second));
  ok(cudaStreamWaitEvent(third, behind.get(), 0));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(cudaStreamQuery(third) == cudaErrorNotReady);
  CHECK(cudaEventQuery(behind.get()) == cudaErrorNotReady);
  CHECK(take_reports().empty());
  ok(cudaStreamSynchronize(third));  // would hang on real CUDA
  const std::vector<std::string> reports = take_reports();
  REQUIRE(reports.size() == 1);
  CHECK_THAT(reports.front(), Catch::Contains("of cuda:2, which waits for cuda:0: that has failed"));
}

TEST_CASE("a reset simulation is empty") {
  {
    const FreshSimulation fresh(4);
    ok(cudaSetDevice(3));
    void* leaked = nullptr;
    ok(cudaMalloc(&leaked, 100));
    cudaStream_t stream = nullptr;
    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    trap(stream);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
  }
  const Live now = live();
  CHECK((now.allocations == 0 && now.streams == 0));
  int current = -1;
  ok(cudaGetDevice(&current));
  CHECK(current == 0);
  ok(cudaDeviceSynchronize());
}

}  // namespace dp::simt::test
