// The CPU backend: float32 in host memory; each replica has its own threads.
#pragma once

#include "kernels/backend.h"

namespace dp::kernels {

Backend& cpu_backend();

}  // namespace dp::kernels
