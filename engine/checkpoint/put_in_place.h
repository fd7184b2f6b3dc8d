#pragma once

#include <string>

#include "engine/base/durable.h"

namespace dp {

// Gives `temporary`, a sibling of `target`, the target's name, durably. Returns where that which stood there lies now;
// empty when nothing did. Error(io): both are what they were.
std::string put_in_place(const std::string& temporary, const PathParts& target);

}  // namespace dp
