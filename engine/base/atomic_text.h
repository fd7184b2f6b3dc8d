// Atomic writes of small text files.
#pragma once

#include <string>

#include "engine/base/file_handle.h"

namespace dp {

// Writes a temporary file beside `path`, syncs it, renames it and syncs the folder. Error(io): the old file is
// unchanged. A pipe or a terminal is written in place.
void write_file_atomically(const std::string& path, const std::string& text);
// Error(io) unless a file can be created beside `path`, or if `path` is a folder or a pipe without a reader. For a pipe
// it returns the write end; hold it until the file is written, so that the reader does not get EOF.
FileHandle require_writable(const std::string& path);

}  // namespace dp
