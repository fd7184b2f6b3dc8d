// The message of a refused call.
#pragma once

#include <concepts>
#include <string>

#include "dp/error.h"
#include "support/catch.h"

namespace dp::test {

// "accepted" if `work` throws nothing. Its error must have this code.
template <std::invocable Work>
std::string refusal_of(Work&& work, ErrorCode code = ErrorCode::usage) {
  try {
    work();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "accepted";
}

}  // namespace dp::test
