#pragma once

#include <string>
#include <vector>

#include "dp/error.h"
#include "support/catch.h"

namespace dp::test {

// Calls `body`. It must throw a dp::Error with this code and every fragment in its text.
template <typename Body>
void expect_error(ErrorCode code, const std::vector<std::string>& fragments, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    INFO(error.what());
    CHECK(to_string(error.code()) == std::string(to_string(code)));
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    for (const std::string& fragment : fragments) {
      INFO("wanted: " << fragment);
      CHECK(std::string(error.what()).find(fragment) != std::string::npos);
    }
    return;
  }
  FAIL("nothing was thrown");
}

}  // namespace dp::test
