// Sets how new instances fuse batch normalisations and layers, while this object exists.
#pragma once

#include "engine/base/test_modes.h"

namespace dp::test {

struct Fusing {
  explicit Fusing(kernels::NormFusion mode) { engine::test_modes().norm_fusion = mode; }
  ~Fusing() { engine::test_modes().norm_fusion = kernels::NormFusion::measured; }
  Fusing(const Fusing&) = delete;
  Fusing& operator=(const Fusing&) = delete;
};

}  // namespace dp::test
