#pragma once

#include <string>

#include "engine/base/durable.h"

namespace dp {

// Durably renames `temporary`, a sibling of `target`, to `target`. Returns the new path of the folder that it replaced,
// or empty if there was none. On Error(io) both are unchanged.
std::string put_in_place(const std::string& temporary, const PathParts& target);

}  // namespace dp
