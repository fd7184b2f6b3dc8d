// Replicas on the host's processor: float32, oneDNN.
#pragma once

#include "kernels/backend.h"

namespace dp::kernels {

Backend& cpu_backend();

}  // namespace dp::kernels
