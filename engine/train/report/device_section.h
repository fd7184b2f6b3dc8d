// The page's part about the devices: time of each phase, memory, layers.
#pragma once

#include <string>
#include <vector>

#include "engine/train/report/run_data.h"

namespace dp {

std::string device_section(const std::vector<RunData>& runs);

}  // namespace dp
