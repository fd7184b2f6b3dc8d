// The oracle for tests: naive loops in float64 on the host (docs/decisions/0003).
#pragma once

#include "kernels/device/backend.h"

namespace dp::kernels {

Backend& reference_backend();

}  // namespace dp::kernels
