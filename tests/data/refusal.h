// What bad data are answered with.
#pragma once

#include <string>

#include "dp/error.h"
#include "support/catch.h"

namespace dp::test {

// The message with which `open` refuses its data; fails the test when there is none, or one of another kind or of several lines.
template <typename Open>
std::string data_refusal(const Open& open) {
  try {
    open();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::data);
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
  FAIL("accepted");
  return {};
}

}  // namespace dp::test
