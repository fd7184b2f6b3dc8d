// dp_train fetch: downloads a data set.
#pragma once

#include <atomic>

#include "sources.h"

namespace dp_train {

// Downloads the files that are missing or differ, and unpacks archives. A file is complete and checked once it has its
// name; until then `<name>.part` has what was received, and the next call continues it. Returns early if `stop` is not
// 0. Error(io) if no mirror can be read or a file cannot be written, Error(data) if the last mirror sent something
// else, Error(usage) if another process downloads into the same folder, or the mirror is no
// address of http or https.
void fetch(const Source& source, const FetchOptions& options, const std::atomic<int>& stop);

}  // namespace dp_train
