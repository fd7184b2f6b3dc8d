// The oracle of the tests: naive loops in float64 on the host.
#pragma once

#include "kernels/backend.h"

namespace dp::kernels {

Backend& reference_backend();

}  // namespace dp::kernels
