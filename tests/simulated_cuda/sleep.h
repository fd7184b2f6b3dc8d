// Stream work that does nothing, for a given time or until it is released.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace dp::simt {

// Enqueues a host function that sleeps for at least `milliseconds`.
inline void sleep_in(cudaStream_t stream, int milliseconds) {
  const auto sleep = [](void* time) {
    std::this_thread::sleep_for(std::chrono::milliseconds(reinterpret_cast<std::intptr_t>(time)));
  };
  cudaLaunchHostFunc(stream, sleep, reinterpret_cast<void*>(static_cast<std::intptr_t>(milliseconds)));
}

// Blocks the stream until `released` is set and notified.
inline void hold(cudaStream_t stream, std::atomic<bool>& released) {
  const auto wait = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); };
  cudaLaunchHostFunc(stream, wait, &released);
}

}  // namespace dp::simt
