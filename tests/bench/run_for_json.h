// Runs dp_bench with --json and parses the file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/run_bench.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace dp::test {

inline nlohmann::json run_for_json(const std::string& arguments) {
  const TemporaryFolder folder;
  const BenchOutcome outcome = run_bench(arguments + " --json " + (folder / "out.json"));
  INFO(outcome.text);
  REQUIRE(outcome.code == 0);
  return nlohmann::json::parse(read_text(folder / "out.json"));
}

inline const nlohmann::json& row_of(const nlohmann::json& section, const std::string& column,
                                    const std::string& value) {
  for (const nlohmann::json& row : section.at("rows"))
    if (row.at(column) == value) return row;
  FAIL("no row " << value);
  return section;
}

}  // namespace dp::test
