#pragma once

#include <dp/error.h>

#include <string>

namespace dp_train {

// Throws: usage.
[[noreturn]] inline void usage(const std::string& what) { throw dp::Error(dp::ErrorCode::usage, what); }

}  // namespace dp_train
