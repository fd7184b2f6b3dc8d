// The errors for bad data.
#pragma once

#include <string>

#include "dp/error.h"
#include "support/catch.h"

namespace dp::test {

// The error text of `open`. Fails the test if there is no error, another error code, or a text with several lines.
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
