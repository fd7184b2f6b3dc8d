// --max-restarts: this process only starts the program again, as a child that trains, and restarts the child after a
// failure. It has no other thread and no device.
#pragma once

#include <dp/option_table.h>
#include <map>
#include <string>

#include "command.h"

namespace dp_train {

// Whether this process, or the launcher of its ranks, was started by a supervisor.
bool is_supervised();

// Whether the command line has --max-restarts. If so, blocks the signals that end a run; supervise() waits for them.
bool may_supervise(int argc, const char* const* argv);

// Runs the program with the same arguments, and restarts it while may_restart() and the options allow it. Returns the
// exit status of the last child. Error(usage) for ranks that another program starts.
int supervise(const Command& command, char* const* argv);

// In the child: sets the run folder that the supervisor has chosen. After a restart, --resume auto.
void obey_supervisor(std::map<std::string, dp::OptionValue>& given);

// Whether a child that ended with this status is restarted. 128 + n: signal n ended it.
bool may_restart(int status);

// Seconds before a restart: `first`, doubled with each restart without a new checkpoint, at most a minute.
int pause_before(int restart, int first);

}  // namespace dp_train
