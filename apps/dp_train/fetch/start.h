// Starts the program that downloads.
#pragma once

#include <optional>
#include <string>

#include "sources.h"

namespace dp_train {

struct FetchOptions {
  std::string data_path;
  std::optional<std::string> mirror{};  // used instead of the source's mirrors
  bool quiet = false;                   // prints warnings only
  bool progress = true;                 // a line that is rewritten, if stdout is a terminal
  int patience = 30;                    // seconds, see Download
};

// Replaces this process by dp_fetch, which is beside it or in ../lib/dp. Error(usage) if this build has none.
[[noreturn]] void start_fetch(const Source& source, const FetchOptions& options);

}  // namespace dp_train
