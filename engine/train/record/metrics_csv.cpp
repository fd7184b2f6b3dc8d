#include "engine/train/record/metrics_csv.h"

#include <array>
#include <cmath>
#include <sstream>

#include "engine/checkpoint/small_json.h"

namespace dp {
namespace {

constexpr std::array kColumns{
    "kind",          "epoch",     "step",    "lr",         "loss",    "top1",    "top5", "images_per_second",
    "loading_share", "grad_norm", "skipped", "loss_scale", "seconds", "average", "best"};

std::string cell(const nlohmann::ordered_json& record, const char* column) {
  const auto at = record.find(column);
  if (at == record.end() || at->is_null()) return "";
  if (at->is_number_float() && !std::isfinite(at->get<double>())) return "";
  return at->is_string() ? at->get<std::string>() : at->dump();
}

}  // namespace

std::string csv_header() {
  std::string line;
  for (const char* const column : kColumns) line += (line.empty() ? "" : ",") + std::string(column);
  return line + "\n";
}

std::string csv_row(const nlohmann::ordered_json& record) {
  const auto kind = record.find("kind");
  if (kind == record.end() || (*kind != "train" && *kind != "eval")) return "";
  std::string line;
  for (const char* const column : kColumns) line += (column == kColumns.front() ? "" : ",") + cell(record, column);
  return line + "\n";
}

std::string csv_table(const std::string& metrics_jsonl) {
  std::istringstream in(metrics_jsonl);
  std::string table = csv_header();
  for (std::string line; std::getline(in, line);)
    if (const auto record = parse_record<nlohmann::ordered_json>(line); record.is_object()) table += csv_row(record);
  return table;
}

}  // namespace dp
