// Work that does nothing, for a known time.
#pragma once

#include <cuda_runtime_api.h>

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

}  // namespace dp::simt
