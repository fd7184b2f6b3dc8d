// metrics.csv: the lines of metrics.jsonl as a table.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace dp {

std::string csv_header();  // the names of the columns, with a line end
// Empty for a record that is neither of training nor of an evaluation. A column that the record lacks is empty.
std::string csv_row(const nlohmann::ordered_json& record);
// The whole table, from the text of metrics.jsonl.
std::string csv_table(const std::string& metrics_jsonl);

}  // namespace dp
