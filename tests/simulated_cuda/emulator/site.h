// Where in a kernel something was called.
#pragma once

namespace dp::simt {

struct Site {
  const char* file = "";
  int line = 0;

  bool operator==(const Site& other) const;
  const char* name() const;  // of the file, without its folders
};

}  // namespace dp::simt

// The last parameter of every primitive, and its value.
#define DP_SIMT_CALLER const char *caller_file = __builtin_FILE(), int caller_line = __builtin_LINE()
#define DP_SIMT_SITE \
  ::dp::simt::Site { caller_file, caller_line }
// The emulator's own work on behalf of a kernel is no access of the kernel's.
#define DP_SIMT_UNSEEN __attribute__((no_sanitize("thread")))
