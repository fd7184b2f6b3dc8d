// Writes and verifies the test pattern of a pair of devices.
#include <cstdint>
#include <vector>

#include "device_code.h"
#include "kernels/comm/p2p/peers.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/device/cuda/stream.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWords = 1 << 18;  // 1 MiB

__global__ void __launch_bounds__(kThreads) write_pattern_kernel(unsigned* words, unsigned seed) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  words[i] = (i + seed) * 2654435761u;
}

__global__ void __launch_bounds__(kThreads) read_words_kernel(const unsigned* from, unsigned* to) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  to[i] = from[i];
}

bool is_pattern(const std::vector<unsigned>& words, unsigned seed) {
  for (unsigned i = 0; i < words.size(); ++i)
    if (words[i] != (i + seed) * 2654435761u) return false;
  return true;
}

}  // namespace

bool reads_pattern(int reader, int owner) {
  constexpr std::size_t kBytes = kWords * sizeof(unsigned);
  constexpr unsigned kSeeds[] = {12345u, 987654321u};
  const dim3 grid(kWords / kThreads), block(kThreads);

  bind_device(owner);
  const StreamHandle owner_stream = make_stream_handle();
  const DeviceMemory source = device_memory(kBytes);
  bind_device(reader);
  check(cudaDeviceEnablePeerAccess(owner, 0), "enabling peer access");
  const StreamHandle stream = make_stream_handle();
  const DeviceMemory target = device_memory(kBytes);
  const PinnedMemory host = pinned_memory(kBytes);
  const auto* const host_words = static_cast<const unsigned*>(host.get());

  // Reads by a kernel, then by a copy. The pattern differs each time, so that stale data fails.
  for (int by_copy = 0; by_copy < 2; ++by_copy) {
    bind_device(owner);
    launch({"write_pattern", grid, block, owner_stream.get()}, write_pattern_kernel,
           static_cast<unsigned*>(source.get()), kSeeds[by_copy]);
    check(cudaStreamSynchronize(owner_stream.get()), "writing a pattern");
    bind_device(reader);
    if (by_copy)
      check(cudaMemcpyPeerAsync(target.get(), reader, source.get(), owner, kBytes, stream.get()),
            "copying from a peer");
    else
      launch({"read_words", grid, block, stream.get()}, read_words_kernel, static_cast<const unsigned*>(source.get()),
             static_cast<unsigned*>(target.get()));
    check(cudaMemcpyAsync(host.get(), target.get(), kBytes, cudaMemcpyDeviceToHost, stream.get()),
          "copying to the host");
    check(cudaStreamSynchronize(stream.get()), "reading a pattern");
    if (!is_pattern({host_words, host_words + kWords}, kSeeds[by_copy])) return false;
  }
  return true;
}

}  // namespace dp::kernels::cuda
