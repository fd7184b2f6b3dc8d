// The standard file descriptors 0, 1 and 2.
#pragma once

namespace dp {

// Opens /dev/null on each standard descriptor that is closed. Otherwise the next file or socket would get its number
// and receive messages. Call it first in main(), before other threads start. Exits with code 7 if /dev/null cannot be
// opened.
void open_standard_descriptors();

// Flushes stdout. Error(io) if output was lost, now or earlier. A reader that closed its end of a pipe is not an error.
void flush_stdout();

}  // namespace dp
