// --max-restarts, --on-end and --webhook: this process starts the program again as a child, which trains. It restarts
// the child after a failure and reports the end of the run. It has no other thread and no device.
#pragma once

#include <dp/option_table.h>
#include <map>
#include <string>

#include "command.h"

namespace dp_train {

// Whether this process, or the launcher of its ranks, was started by a supervisor.
bool is_supervised();

// Whether the command line has one of these options. If so, blocks the signals that end a run; supervise() waits for
// them.
bool may_supervise(int argc, const char* const* argv);

// Whether this process supervises the run. If another program starts the ranks, only rank 0 reports the end, and
// --max-restarts is an Error(usage).
bool needs_supervisor(const Command& command);

// Runs the program with the same arguments. --on-end and --webhook are left out, because they may contain secrets and a
// run records its arguments. Restarts the program while may_restart() and the options allow it. Returns the exit status
// of the last child.
int supervise(const Command& command, char* const* argv);

// In the child: sets the run folder chosen by the supervisor. After a restart it also sets --resume auto, and with
// --elastic the GPUs.
void obey_supervisor(std::map<std::string, dp::OptionValue>& given);

// Whether the supervisor chose the visible GPUs: after a restart with --elastic.
bool may_leave_out_gpus();

// Whether a child that ended with this status is restarted. 128 + n: signal n ended it.
bool may_restart(int status);

// Seconds before a restart: `first`, doubled with each restart without a new checkpoint, at most a minute.
int pause_before(int restart, int first);

}  // namespace dp_train
