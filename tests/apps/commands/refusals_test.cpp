// docs/reference/refusals.md: each command line in its table gets exactly the answer beside it.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp::test;

struct Row {
  std::string command, code, answer;
};

// Rows of the form "| `command` | code | answer |"; the answer has \| for |.
std::vector<Row> rows_of_the_page() {
  std::ifstream page(DP_SOURCE "/docs/reference/refusals.md");
  std::vector<Row> rows;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| `")) continue;
    const std::size_t command = line.find("` | ", 3), code = line.find(" | ", command + 4);
    REQUIRE(code != std::string::npos);
    Row row{line.substr(3, command - 3), line.substr(command + 4, code - command - 4),
            line.substr(code + 3, line.size() - code - 5)};
    for (std::size_t at = 0; (at = row.answer.find("\\|", at)) != std::string::npos;) row.answer.erase(at, 1);
    rows.push_back(row);
  }
  return rows;
}

Words words_of(const std::string& command) {
  Words words;
  std::istringstream text(command);
  for (std::string word; text >> word;) words.push_back(word == "''" ? "" : word);
  return words;
}

TEST_CASE("each wrong command line of the page gets the answer beside it, in one line") {
  const std::vector<Row> rows = rows_of_the_page();
  CHECK(rows.size() >= 40);
  const TemporaryFolder temp;
  std::filesystem::create_directories(temp / "datasets/MNIST/raw");
  write_tiny_mnist(temp / "datasets/MNIST/raw");
  write_text(temp / "notes.txt", "not a checkpoint");
  write_text(temp / "summary.toml", "summary = \"x\"\n");
  for (const Row& row : rows) {
    const Words words = words_of(row.command);
    REQUIRE(words.front() == "dp_train");
    const Outcome outcome = run_dp_train({words.begin() + 1, words.end()}, temp.path());
    INFO(row.command);
    CHECK(std::to_string(outcome.code) == row.code);
    CHECK(outcome.err == "dp_train: error: " + row.answer + "\n");
  }
}

}  // namespace
