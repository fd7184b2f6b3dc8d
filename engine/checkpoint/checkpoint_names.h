// The names of folders under <run>/checkpoints.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace dp {

bool is_checkpoint_name(std::string_view name);  // last, best, step-N

// ".<base>.tmp-<pid>-<n>" is a folder that a save was writing, or what it had replaced; ".<base>.old-<pid>-<n>" always
// the latter.
struct Leftover {
  std::string base;
  pid_t owner = 0;
};
std::optional<Leftover> parse_leftover(std::string_view name);

// Whether a save by that process can no longer be under way. A process that is not known to be dead is alive.
bool is_dead_or_own(pid_t owner);

}  // namespace dp
