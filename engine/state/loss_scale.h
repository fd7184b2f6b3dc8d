// The scale of the loss with float16. Every device has a copy, which the update of each step adapts.
#pragma once

#include "dp/loss_scale.h"
#include "engine/step/team.h"

namespace dp::engine {

LossScale read_loss_scale(Team& team);  // waits for the devices
void write_loss_scale(Team& team, const LossScale& scale);

}  // namespace dp::engine
