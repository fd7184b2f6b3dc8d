// The record of a crash: crash.json (docs/reference/formats.md).
#pragma once

#include <string>

namespace dp {

struct CrashRecordOptions {
  // Where the record is written, usually crash.json in the folder of a run. Its folder may be made later.
  std::string file;
  // The program dp_stacks, which adds the stacks of all threads with the names of functions. Empty: the record has the
  // addresses of the crashed thread only.
  std::string stacks_program;
};

// From now on a fatal signal (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT), an uncaught exception and a verdict of the
// watchdog write a record of this process. The signal then ends the process, as without the record. A later call
// replaces the options. Replaces the handlers of these signals and of std::terminate(). Error(usage) for a path of more
// than 4,095 bytes.
void record_crashes(const CrashRecordOptions& options);

}  // namespace dp
