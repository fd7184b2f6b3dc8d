#pragma once

#include <string>

namespace dp::world {

std::string drawn_token();  // 32 hexadecimal digits that nobody can guess

}  // namespace dp::world
