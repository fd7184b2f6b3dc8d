// Runs dp_bench and collects its exit status, its output, or its results as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace dp::test {

struct BenchOutcome {
  int code = -1;
  std::string text;  // stdout and stderr
};
// `arguments` is shell text.
BenchOutcome run_bench(const std::string& arguments);
BenchOutcome run_shell(const std::string& command);

// The file of --json. Fails the test if dp_bench does.
nlohmann::json run_for_json(const std::string& arguments);
// The first row with this value in this column. Fails the test if there is none.
const nlohmann::json& row_of(const nlohmann::json& section, const std::string& column, const std::string& value);

}  // namespace dp::test
