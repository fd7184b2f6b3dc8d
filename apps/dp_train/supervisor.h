// --max-restarts: this process only starts the program again, as a child that trains, and restarts the child after a
// failure. It has no other thread and no device.
#pragma once

#include <dp/option_table.h>
#include <map>
#include <string>

#include "command.h"

namespace dp_train {

// Whether a supervisor has started this process, or its launcher of ranks.
bool is_supervised();

// Whether the command line may ask for a supervisor. If so, blocks the signals that end a run, for supervise().
bool may_supervise(int argc, const char* const* argv);

// Runs the program with the same arguments until it ends by itself, by a signal that asks it to stop, or for good.
// Returns the exit status of the last child. Throws: usage for ranks that another program starts.
int supervise(const Command& command, char* const* argv);

// In the child: sets the run folder that the supervisor has chosen. After a restart, --resume auto.
void obey_supervisor(std::map<std::string, dp::OptionValue>& given);

// Whether a restart may mend what ended a child with this status (128 + n: by signal n).
bool may_restart(int status);

// Seconds before a restart: `first`, doubled with each restart without a new checkpoint, at most a minute.
int pause_before(int restart, int first);

}  // namespace dp_train
