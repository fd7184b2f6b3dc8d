// Data sets as Python holds them.
#pragma once

#include <dp/dataset.h>
#include <memory>

#include "convert.h"

namespace dp_python {

using SharedDataset = std::shared_ptr<dp::Dataset>;

// Python has no const objects.
SharedDataset shared(const std::shared_ptr<const dp::Dataset>& dataset);

}  // namespace dp_python
