// Runs the rows of the table.
#pragma once

#include "apps/option_rows.h"

namespace dp::test {

void check_rows(const std::vector<OptionRow>& rows);
void check_alone(const AloneRow& row);
// Of the setting, on a terminal of its own: what it printed there.
std::string printed_on_a_terminal(const Words& arguments);

}  // namespace dp::test
