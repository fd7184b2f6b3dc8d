// The data that a page draws.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "support/catch.h"

namespace dp::test {

inline nlohmann::ordered_json page_data(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const std::size_t at = page.find(begin);
  REQUIRE(at != std::string::npos);
  const std::size_t from = at + begin.size();
  return nlohmann::ordered_json::parse(page.substr(from, page.find("</script>", from) - from));
}

}  // namespace dp::test
