// The source location of a call in a kernel.
#pragma once

namespace dp::simt {

struct Site {
  const char* file = "";
  int line = 0;

  bool operator==(const Site& other) const;
  const char* name() const;  // file name without directories
};

}  // namespace dp::simt

// The last parameter of every primitive, and its value.
#define DP_SIMT_CALLER const char *caller_file = __builtin_FILE(), int caller_line = __builtin_LINE()
#define DP_SIMT_SITE \
  ::dp::simt::Site { caller_file, caller_line }
// Excludes the emulator's own accesses from the race detector.
#define DP_SIMT_UNSEEN __attribute__((no_sanitize("thread")))
