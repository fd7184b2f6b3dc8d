// Work that does nothing, for a known time or until it is let go.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace dp::simt {

// Of at least so long.
inline void sleep_in(cudaStream_t stream, int milliseconds) {
  const auto sleep = [](void* time) {
    std::this_thread::sleep_for(std::chrono::milliseconds(reinterpret_cast<std::intptr_t>(time)));
  };
  cudaLaunchHostFunc(stream, sleep, reinterpret_cast<void*>(static_cast<std::intptr_t>(milliseconds)));
}

// Until the flag is set and notified.
inline void hold(cudaStream_t stream, std::atomic<bool>& released) {
  const auto wait = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); };
  cudaLaunchHostFunc(stream, wait, &released);
}

}  // namespace dp::simt
