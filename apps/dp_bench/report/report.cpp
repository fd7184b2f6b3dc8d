#include "report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace dp_bench {
namespace {

// Columns on a terminal: counts UTF-8 code points, not bytes.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string padded(const std::string& text, std::size_t size, bool right) {
  const std::string space(size - std::min(size, width(text)), ' ');
  return right ? space + text : text + space;
}

}  // namespace

const char* to_string(Kind kind) {
  switch (kind) {
    case Kind::measured: return "measured";
    case Kind::modelled: return "modelled";
    case Kind::published: return "published";
    case Kind::absent: return "not run";
  }
  return "";
}

std::string shown(const Cell& cell, int digits) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  const auto* number = std::get_if<double>(&cell);
  if (number == nullptr || !std::isfinite(*number)) return "-";
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, *number);
  return buffer;
}

bool has_remarks(const Section& section) {
  return std::any_of(section.rows.begin(), section.rows.end(),
                     [](const Row& row) { return row.kind != Kind::measured || !row.note.empty(); });
}

std::string remark(const Row& row) {
  return row.note.empty() ? to_string(row.kind) : std::string(to_string(row.kind)) + ": " + row.note;
}

std::string to_text(const Section& section) {
  const std::size_t columns = section.columns.size();
  std::vector<std::size_t> widths;
  for (const Column& column : section.columns) widths.push_back(width(column.title));
  std::vector<std::vector<std::string>> cells;
  for (const Row& row : section.rows) {
    std::vector<std::string> line(columns, "-");
    for (std::size_t i = 0; i < row.cells.size(); ++i) line[i] = shown(row.cells[i], section.columns[i].digits);
    for (std::size_t i = 0; i < columns; ++i) widths[i] = std::max(widths[i], width(line[i]));
    cells.push_back(line);
  }
  const bool remarks = has_remarks(section);
  const auto line_of = [&](const std::vector<std::string>& words, const std::string& end) {
    std::string line;
    for (std::size_t i = 0; i < columns; ++i) line += (i ? "  " : "") + padded(words[i], widths[i], i > 0);
    if (remarks) line += "  " + end;
    line.erase(line.find_last_not_of(' ') + 1);
    return line + '\n';
  };
  std::vector<std::string> titles;
  for (const Column& column : section.columns) titles.push_back(column.title);
  std::string text = section.title + '\n' + line_of(titles, "");
  for (std::size_t i = 0; i < cells.size(); ++i) text += line_of(cells[i], remark(section.rows[i]));
  if (!section.text.empty()) text += section.text + '\n';
  return text;
}

std::string to_text(const Report& report) {
  std::string text = report.title + "\n";
  for (const auto& [key, value] : report.facts) text += "  " + key + ": " + value + '\n';
  for (const Section& section : report.sections) text += '\n' + to_text(section);
  return text;
}

std::string to_markdown(const Report& report) {
  std::string text = "# " + report.title + "\n\n";
  for (const auto& [key, value] : report.facts)
    text += "- " + key + ": " + (key == "command" ? "`" + value + "`" : value) + '\n';
  for (const Section& section : report.sections) {
    const bool remarks = has_remarks(section);
    text += "\n## " + section.title + "\n\n|";
    for (const Column& column : section.columns) text += " " + column.title + " |";
    text += remarks ? " source |\n|" : "\n|";
    for (std::size_t i = 0; i < section.columns.size() + (remarks ? 1 : 0); ++i) text += "---|";
    for (const Row& row : section.rows) {
      text += "\n|";
      for (std::size_t i = 0; i < section.columns.size(); ++i)
        text += " " + (i < row.cells.size() ? shown(row.cells[i], section.columns[i].digits) : "-") + " |";
      if (remarks) text += " " + remark(row) + " |";
    }
    text += section.text.empty() ? "\n" : "\n\n" + section.text + "\n";
  }
  return text;
}

}  // namespace dp_bench
