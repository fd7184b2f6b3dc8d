#include <cstring>

#include "simulated_cuda/planted/bugs.h"
#include "simulated_cuda/planted/kernels.h"
#include "simulated_cuda/rig.h"

namespace dp::simt::test {
namespace {

constexpr int kElements = 4096;
constexpr std::size_t kBytes = kElements * sizeof(float);

std::vector<float> filled(float value) { return std::vector<float>(kElements, value); }
bool all_are(const float* values, float wanted) {
  for (int i = 0; i < kElements; ++i)
    if (!(values[i] == wanted)) return false;
  return true;
}

// y = x + 1 on one stream, z = y + 1 on another.
bool second_stream_waits(bool planted) {
  const TestStream first, second;
  const auto event = kernels::cuda::make_event_handle();
  const DeviceArray<float> x(filled(1)), y(filled(0)), z(filled(0));
  add_one(x, y, kElements, first);
  ok(cudaEventRecord(event.get(), first));
  if (!planted) ok(cudaStreamWaitEvent(second, event.get(), 0));
  add_one(y, z, kElements, second);
  first.finish();
  second.finish();
  return all_are(z.values().data(), 3);
}

bool waits_after_the_record(bool planted) {
  const TestStream first, second;
  const auto event = kernels::cuda::make_event_handle();
  const DeviceArray<float> x(filled(1)), y(filled(0)), z(filled(0));
  if (planted) ok(cudaStreamWaitEvent(second, event.get(), 0));  // the event is not recorded yet: no effect
  add_one(x, y, kElements, first);
  ok(cudaEventRecord(event.get(), first));
  if (!planted) ok(cudaStreamWaitEvent(second, event.get(), 0));
  add_one(y, z, kElements, second);
  first.finish();
  second.finish();
  return all_are(z.values().data(), 3);
}

// y is read on the second stream, then overwritten on the first.
bool writer_waits_for_readers(bool planted) {
  const TestStream first, second;
  const auto written = kernels::cuda::make_event_handle(), read = kernels::cuda::make_event_handle();
  const DeviceArray<float> x(filled(1)), y(filled(0)), z(filled(0));
  add_one(x, y, kElements, first);
  ok(cudaEventRecord(written.get(), first));
  ok(cudaStreamWaitEvent(second, written.get(), 0));
  add_one(y, z, kElements, second);
  ok(cudaEventRecord(read.get(), second));
  if (!planted) ok(cudaStreamWaitEvent(first, read.get(), 0));
  ok(cudaMemsetAsync(y, 0, kBytes, first));
  first.finish();
  second.finish();
  return all_are(z.values().data(), 3);
}

bool kernel_waits_for_copy(bool planted) {
  const TestStream copies, work;
  const auto event = kernels::cuda::make_event_handle();
  const auto host = kernels::cuda::pinned_memory(kBytes);
  std::memcpy(host.get(), filled(1).data(), kBytes);
  const DeviceArray<float> x(filled(0)), y(filled(0));
  ok(cudaMemcpyAsync(x, host.get(), kBytes, cudaMemcpyHostToDevice, copies));
  ok(cudaEventRecord(event.get(), copies));
  if (!planted) ok(cudaStreamWaitEvent(work, event.get(), 0));
  add_one(x, y, kElements, work);
  copies.finish();
  work.finish();
  return all_are(y.values().data(), 2);
}

// Devices 0 and 1 with peer access: 1 reads what 0 has written.
bool peer_waits(bool planted) {
  simulation().devices = 2;
  simulation().set_peers(Peer::works);
  const TestStream first;
  const DeviceArray<float> x(filled(1)), y(filled(0));
  const auto event = kernels::cuda::make_event_handle();
  ok(cudaSetDevice(1));
  ok(cudaDeviceEnablePeerAccess(0, 0));
  const TestStream second;
  const DeviceArray<float> z(filled(0));
  ok(cudaSetDevice(0));
  add_one(x, y, kElements, first);
  ok(cudaEventRecord(event.get(), first));
  ok(cudaSetDevice(1));
  if (!planted) ok(cudaStreamWaitEvent(second, event.get(), 0));
  add_one(y, z, kElements, second);
  first.finish();
  second.finish();
  const bool right = all_are(z.values().data(), 3);
  ok(cudaSetDevice(0));
  return right;
}

bool host_waits_for_copy(bool planted) {
  const TestStream stream;
  const DeviceArray<float> x(filled(1));
  const auto host = kernels::cuda::pinned_memory(kBytes);
  auto* const values = static_cast<float*>(host.get());
  std::memset(values, 0, kBytes);
  ok(cudaMemcpyAsync(values, x, kBytes, cudaMemcpyDeviceToHost, stream));
  if (!planted) stream.finish();
  const bool right = all_are(values, 1);
  stream.finish();
  return right;
}

bool host_keeps_source(bool planted) {
  const TestStream stream;
  const DeviceArray<float> x(filled(0));
  const auto host = kernels::cuda::pinned_memory(kBytes);
  auto* const values = static_cast<float*>(host.get());
  std::memcpy(values, filled(1).data(), kBytes);
  ok(cudaMemcpyAsync(x, values, kBytes, cudaMemcpyHostToDevice, stream));
  if (!planted) stream.finish();
  for (int i = 0; i < kElements; ++i) values[i] = 2;
  stream.finish();
  return all_are(x.values().data(), 1);
}

bool uses_its_own_stream(bool planted) {
  const TestStream stream;
  const DeviceArray<float> x(filled(1)), y(filled(0));
  add_one(x, y, kElements, planted ? cudaStream_t{} : cudaStream_t{stream});
  stream.finish();
  return all_are(y.values().data(), 2);
}

}  // namespace

std::vector<PlantedBug> planted_stream_bugs() {
  return {
      {"missing_wait", "a kernel reads what one on another stream writes, with no event between", true,
       second_stream_waits},
      {"wait_before_record", "the wait for an event comes before its record", true, waits_after_the_record},
      {"missing_wait_of_writer", "a fill overwrites what a kernel on another stream reads", true,
       writer_waits_for_readers},
      {"missing_wait_for_copy", "a kernel reads what a copy on another stream brings", true, kernel_waits_for_copy},
      {"missing_wait_of_peer", "a kernel of one device reads what another device writes", true, peer_waits},
      {"early_read_by_host", "the host reads the destination of a copy before it has waited", true,
       host_waits_for_copy},
      {"early_write_by_host", "the host overwrites the pinned source of a copy before it has waited", true,
       host_keeps_source},
      {"default_stream", "a kernel on the default stream", false, uses_its_own_stream},
  };
}

}  // namespace dp::simt::test
