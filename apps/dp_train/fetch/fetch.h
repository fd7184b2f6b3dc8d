// dp_train fetch: downloads a data set. --webhook: sends a document.
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

// Sends the document to an address of http or https, without following redirects. Error(io) if the server does not take
// it; the message does not quote the address.
void post(const std::string& address, const std::string& json);

}  // namespace dp_train
