#pragma once

#include <string>

namespace dp::process_group {

std::string drawn_token();  // 32 hexadecimal digits that nobody can guess

}  // namespace dp::process_group
