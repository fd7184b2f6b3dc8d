// Arguments of commands in messages.
#pragma once

#include <string>
#include <string_view>

namespace dp {

// The argument as a word that can be pasted into a shell, in printable ASCII; bash reads the form $'...' of other
// characters. A path that starts with a dash must be given as "./-name", see path_argument().
std::string shell_argument(std::string_view argument);
std::string path_argument(std::string_view path);

}  // namespace dp
