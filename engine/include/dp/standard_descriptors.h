// The standard descriptors 0, 1 and 2 of a program.
#pragma once

namespace dp {

// Opens /dev/null on each one that is closed: otherwise the next file or socket gets its number, and messages are written into it. Call it
// first in main(), before other threads start. Ends the process with exit code 7 when /dev/null cannot be opened.
void open_standard_descriptors();

// Flushes stdout. Throws Error(io) if output was lost, now or before. A reader that closed its end of a pipe is not an error.
void flush_stdout();

}  // namespace dp
