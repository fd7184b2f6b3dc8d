// Runs the rows of the option table.
#pragma once

#include "apps/options/option_rows.h"

namespace dp::test {

void check_rows(const std::vector<OptionRow>& rows);
void check_alone(const AloneRow& row);
// The number of columns once the program has printed a text; empty: from the start.
struct Resize {
  std::string once;
  unsigned short columns;
};
// Runs Setting::mlp with these arguments on a pseudo-terminal of these sizes. Returns its output. `stall`: a place as
// in DP_FAIL, where the program waits until its terminal has had every size.
std::string printed_on_a_terminal(const Words& arguments, const std::vector<Resize>& sizes = {},
                                  const std::string& stall = "");

}  // namespace dp::test
