#include "engine/process_group/token.h"

#include <sys/random.h>

#include <array>

#include "dp/error.h"

namespace dp::process_group {

std::string drawn_token() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw Error(ErrorCode::device, "cannot read random numbers for the run's token");
  std::string text;
  for (const unsigned char byte : bytes)
    for (const int nibble : {byte >> 4, byte & 15}) text += "0123456789abcdef"[nibble];
  return text;
}

}  // namespace dp::process_group
