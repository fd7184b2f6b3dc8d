// Archives of data sets.
#pragma once

#include <atomic>
#include <string>

namespace dp_train {

// Unpacks a .tar.gz file into this new folder and syncs its files. Returns early if `stop` is not 0. Error(data) for an
// archive that is damaged or has anything but regular files and folders below its own top: absolute paths, "..", links,
// devices. Error(io) or std::filesystem::filesystem_error if the files cannot be written.
void unpack(const std::string& archive, const std::string& folder, const std::atomic<int>& stop);

}  // namespace dp_train
