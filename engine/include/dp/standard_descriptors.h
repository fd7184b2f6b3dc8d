// The standard descriptors 0, 1 and 2 of a process that was started without them.
#pragma once

namespace dp {

// Opens /dev/null on each one that is closed: otherwise the next file or socket gets its number, and messages are written into it. Call it
// first in main(), before other threads start. Ends the process with exit code 7 when /dev/null cannot be opened.
void open_standard_descriptors();

}  // namespace dp
