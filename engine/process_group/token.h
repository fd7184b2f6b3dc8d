#pragma once

#include <string>

namespace dp::process_group {

std::string drawn_token();  // 128 random bits of the system as 32 hexadecimal digits

}  // namespace dp::process_group
