// Parts of the HTML page.
#pragma once

#include <string>

#include "report.h"

namespace dp_bench {

std::string escaped(const std::string& text);  // each line as in messages
// A figure with its legend. Empty without a finite point.
std::string line_chart(const LineChart& chart);

}  // namespace dp_bench
