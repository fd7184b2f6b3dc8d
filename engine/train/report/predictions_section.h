// The page's part about what the model confuses.
#pragma once

#include <string>
#include <vector>

#include "engine/train/report/run_data.h"

namespace dp {

// The confusion matrix of each run, the accuracy of each class, and the most confident errors as images; with
// several runs, a reader unfolds the last two. A single run without predictions gets a line that says so.
std::string predictions_section(const std::vector<RunData>& runs);

}  // namespace dp
