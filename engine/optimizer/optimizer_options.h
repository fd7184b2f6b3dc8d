// The options of optimizers and learning rate schedules.
#pragma once

#include "dp/optimizer.h"
#include "dp/option_table.h"

namespace dp::engine {

const OptionTable<Optimizer>& optimizer_options();
const OptionTable<Schedule>& schedule_options();
// Error(usage) names the option that is out of range. Allocates nothing if none is: training steps call it.
void check(const Optimizer& optimizer);

}  // namespace dp::engine
