// Completes the trainer's options.
#pragma once

#include <dp/process_group.h>
#include <dp/trainer.h>
#include <memory>
#include <string>
#include <vector>

#include "command.h"

namespace dp_train {

// dp::Error(usage) if --resume contradicts another option.
void check_resume(const Command& command);

// The options of the run on these devices, or of one rank of `group`. dp::Error(usage) for options that contradict
// each other.
dp::TrainerOptions trainer_options(const Command& command, const std::vector<dp::Device>& devices,
                                   const std::shared_ptr<dp::ProcessGroup>& group);

// Warns about given options that have no effect on this kind of device. Empty if there is none.
std::string without_effect(const Command& command, dp::DeviceKind kind);

}  // namespace dp_train
