#include "simulated_cuda/planted/bugs.h"
#include "simulated_cuda/planted/kernels.h"
#include "simulated_cuda/rig.h"

namespace dp::simt::test {
namespace {

constexpr int kOddCount = 60;  // not a multiple of the allocations' alignment

std::vector<float> ones(int n = kOddCount) { return std::vector<float>(n, 1); }
bool all_are_two(const std::vector<float>& values) {
  for (const float value : values)
    if (!(value == 2)) return false;
  return true;
}

bool host_leaves_device_memory(bool planted) {
  const DeviceArray<float> x(ones());
  return planted ? x.get()[3] == 1 : x.values()[3] == 1;
}

bool kernel_gets_device_memory(bool planted) {
  const TestStream stream;
  const std::vector<float> host = ones();
  const DeviceArray<float> x(host), y(kOddCount);
  add_one(planted ? host.data() : x.get(), y, kOddCount, stream);
  stream.finish();
  return all_are_two(y.values());
}

// A kernel on cuda:0 reads memory of cuda:1. `behind`: through a pointer in memory, which the runtime cannot check.
template <bool behind>
bool peer_is_asked(bool planted) {
  simulation().devices = 2;
  simulation().set_peers(Peer::works);
  ok(cudaSetDevice(1));
  const DeviceArray<float> x(ones());
  ok(cudaSetDevice(0));
  if (!planted) ok(cudaDeviceEnablePeerAccess(1, 0));
  const TestStream stream;
  const DeviceArray<float> y(kOddCount);
  const DeviceArray<const float*> place(std::vector<const float*>{x.get()});
  if (behind) {
    add_one_behind(place, y, kOddCount, stream);
  } else {
    add_one(x, y, kOddCount, stream);
  }
  stream.finish();
  return all_are_two(y.values());
}

bool reads_inside(bool planted) {
  constexpr int n = 64;
  const TestStream stream;
  const DeviceArray<float> x(ones(n)), y(n + 1);
  add_one(x, y, planted ? n + 1 : n, stream);
  stream.finish();
  auto values = y.values();
  values.resize(n);
  return all_are_two(values);
}

bool writes_inside(bool planted) {
  const TestStream stream;
  const DeviceArray<float> x(ones(kOddCount + 1));
  const DeviceArray<float> y(kOddCount);
  add_one(x, y, planted ? kOddCount + 1 : kOddCount, stream);
  stream.finish();
  return all_are_two(y.values());
}

bool memory_lives(bool planted) {
  const TestStream stream;
  const DeviceArray<float> y(kOddCount);
  float* x = nullptr;
  ok(cudaMalloc(reinterpret_cast<void**>(&x), kOddCount * sizeof(float)));
  ok(cudaMemcpy(x, ones().data(), kOddCount * sizeof(float), cudaMemcpyHostToDevice));
  const DeviceArray<const float*> place(std::vector<const float*>{x});
  if (planted) ok(cudaFree(x));
  add_one_behind(place, y, kOddCount, stream);
  stream.finish();
  if (!planted) ok(cudaFree(x));
  return all_are_two(y.values());
}

bool stack_is_enough(bool planted) {
  const TestStream stream;
  const DeviceArray<float> y(1);
  run_deep(planted ? 10000 : 3, y, stream);
  stream.finish();
  return y.values()[0] == 2;
}

}  // namespace

std::vector<PlantedBug> planted_memory_bugs() {
  return {
      {"host_reads_device_memory", "host code reads device memory", false, host_leaves_device_memory},
      {"kernel_reads_host_memory", "a kernel is given a pointer to pageable host memory", false,
       kernel_gets_device_memory},
      {"peer_without_access", "a kernel is given memory of a device that is no peer", false, peer_is_asked<false>},
      {"hidden_peer_without_access", "the same, by a pointer that lies in device memory", false, peer_is_asked<true>},
      {"read_outside", "a read behind the end of an allocation", false, reads_inside},
      {"write_outside", "a write just behind the end of an allocation", false, writes_inside},
      {"use_after_free", "a kernel reads memory that has been freed", false, memory_lives},
      {"deep_recursion", "more stack than a thread has", false, stack_is_enough},
  };
}

}  // namespace dp::simt::test
