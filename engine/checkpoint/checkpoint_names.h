// The names of folders under <run>/checkpoints.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace dp {

bool is_checkpoint_name(std::string_view name);  // last, best, step-N

// ".<base>.tmp-<pid>-<n>" is an unfinished save or the folder that a save replaced. ".<base>.old-<pid>-<n>" is always
// the folder that a save replaced.
struct Leftover {
  std::string base;
  pid_t owner = 0;
};
std::optional<Leftover> parse_leftover(std::string_view name);

// Whether no save by process `owner` can be running: it is this process, or it does not exist. If in doubt, false.
bool is_dead_or_own(pid_t owner);

}  // namespace dp
