// Runs the rows of the option table.
#pragma once

#include "apps/option_rows.h"

namespace dp::test {

void check_rows(const std::vector<OptionRow>& rows);
void check_alone(const AloneRow& row);
// Runs Setting::mlp with these arguments on a pseudo-terminal. Returns its output.
std::string printed_on_a_terminal(const Words& arguments);

}  // namespace dp::test
