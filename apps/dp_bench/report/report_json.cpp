#include <cmath>
#include <cstdio>

#include "report.h"

namespace dp_bench {
namespace {

constexpr int kSchema = 1;  // docs/guide/benchmarking.md

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += std::string("\\") + c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned char>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.9g", value);
  return buffer;
}

std::string of(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return quoted(*text);
  const auto* value = std::get_if<double>(&cell);
  return value ? number(*value) : "null";
}

template <typename Items, typename Write>
std::string list(const Items& items, const std::string& separator, const Write& write) {
  std::string out;
  for (const auto& item : items) out += (out.empty() ? "" : separator) + write(item);
  return out;
}

std::string of(const Section& section, const Row& row) {
  std::string out = "{\"kind\":" + quoted(to_string(row.kind));
  for (std::size_t i = 0; i < section.columns.size(); ++i)
    out += ',' + quoted(section.columns[i].key) + ':' + (i < row.cells.size() ? of(row.cells[i]) : "null");
  if (!row.note.empty()) out += ",\"note\":" + quoted(row.note);
  if (!row.samples.empty()) out += ",\"samples\":[" + list(row.samples, ",", number) + "]";
  return out + '}';
}

std::string of(const Section& section) {
  return "{\"key\":" + quoted(section.key) + ",\"title\":" + quoted(section.title) +
         ",\"text\":" + quoted(section.text) + ",\"columns\":{" +
         list(section.columns, ",", [](const Column& c) { return quoted(c.key) + ':' + quoted(c.title); }) +
         "},\"rows\":[\n  " + list(section.rows, ",\n  ", [&](const Row& row) { return of(section, row); }) + "]}";
}

}  // namespace

std::string to_json(const Report& report) {
  return "{\"program\":\"dp_bench\",\"schema\":" + std::to_string(kSchema) + ",\"command\":" + quoted(report.command) +
         ",\"title\":" + quoted(report.title) + ",\n\"facts\":{" +
         list(report.facts, ",\n ", [](const auto& fact) { return quoted(fact.first) + ':' + quoted(fact.second); }) +
         "},\n\"sections\":[\n " + list(report.sections, ",\n ", [](const Section& section) { return of(section); }) +
         "]}\n";
}

}  // namespace dp_bench
