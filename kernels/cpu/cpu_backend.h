// The CPU: replicas on host memory, each with its own threads, computing in float32.
#pragma once

#include "kernels/backend.h"

namespace dp::kernels {

Backend& cpu_backend();

}  // namespace dp::kernels
