// Reports output to stdout that could not be written.
#pragma once

namespace dp_train {

// Flushes stdout. Returns 0; on failure 7, after a line of this severity on stderr. A reader that closed its end is not an error.
int finish_output(const char* severity = "error");

}  // namespace dp_train
