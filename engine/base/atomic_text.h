// Small text files that appear whole or not at all.
#pragma once

#include <string>

#include "engine/base/file_handle.h"

namespace dp {

// Writes a temporary file beside `path`, syncs it, renames it, syncs the folder. Error(io); the old file stays then. A pipe or a terminal
// is written in place.
void write_file_atomically(const std::string& path, const std::string& text);
// Error(io) unless a file can be made beside `path`, or if `path` is a folder or a pipe without a reader. For a pipe it returns the end to
// write; hold it until the file is written, so that the reader stays.
FileHandle require_writable(const std::string& path);

}  // namespace dp
