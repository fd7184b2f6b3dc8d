// What the record of a crash contains, and when it is written without a signal. See dp/crash_record.h.
#pragma once

#include <string>

#include "engine/observe/progress.h"

namespace dp::engine {

// While this object lives, the record contains the progress of a replica. The first 256 of a process are recorded.
class InCrashRecord {
 public:
  // `stage`: -1 without a pipeline. `progress` must outlive this object.
  InCrashRecord(const Progress& progress, int replica, int stage);
  ~InCrashRecord();
  InCrashRecord(const InCrashRecord&) = delete;
  InCrashRecord& operator=(const InCrashRecord&) = delete;

 private:
  int place_ = -1;  // -1: not recorded
};

// A JSON object about the run, with versions and options, for the record of this process. At most 32 KiB are recorded.
void describe_run_in_crash_record(const std::string& json);

// Writes the record of a process that has stalled: `what` happened. Waits at most `seconds` for the stacks. Does
// nothing before record_crashes(), or if the process is crashing.
void record_stall(const std::string& what, double seconds);

}  // namespace dp::engine
