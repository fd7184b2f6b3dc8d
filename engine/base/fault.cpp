#include "engine/base/fault.h"

#include <cerrno>
#include <system_error>

#include "dp/error.h"

namespace dp {
namespace {

constexpr std::size_t kLongestPath = 4096;

std::string sentence(std::string_view path, const std::string& doing, int error) {
  return excerpt(path, kLongestPath) + ": " + doing + " failed: " + std::generic_category().message(error);
}

}  // namespace

std::string excerpt(std::string_view text, std::size_t longest) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string result;
  for (const char c : text.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 32 && byte < 127)
      result += c;
    else
      (result += "\\x").append({kHex[byte >> 4], kHex[byte & 15]});
  }
  return text.size() > longest ? result + "..." : result;
}

const char* remedy_of(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return "; free some space";
    case EFBIG: return "; raise ulimit -f";
    case EACCES:
    case EROFS: return "; choose a folder in which you may write";
    default: return "";
  }
}

void throw_data(std::string_view path, const std::string& fault) {
  throw Error(ErrorCode::data, excerpt(path, kLongestPath) + ": " + fault);
}
void throw_data_errno(std::string_view path, const std::string& doing, int error) {
  throw Error(ErrorCode::data, sentence(path, doing, error));
}
void throw_io_errno(std::string_view path, const std::string& doing, int error) {
  throw Error(ErrorCode::io, sentence(path, doing, error) + remedy_of(error));
}

}  // namespace dp
