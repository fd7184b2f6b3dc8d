// The race detector's stream number for operations outside any stream: cudaMemcpy.
#pragma once

#include "simulated_cuda/emulator/detector.h"

namespace dp::simt {

inline std::size_t default_clock() {
  static const std::size_t clock = detector->stream_created();
  return clock;
}

}  // namespace dp::simt
