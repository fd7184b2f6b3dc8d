// A section of a report as lines: keys, titles, and the rows as they are shown.
#pragma once

#include <string>
#include <vector>

#include "apps/dp_bench/report/report.h"

namespace dp::test {

inline std::vector<std::string> shown_table(const dp_bench::Section& section) {
  std::vector<std::string> lines(2);
  for (const dp_bench::Column& column : section.columns) {
    lines[0] += (lines[0].empty() ? "" : " ") + column.key;
    lines[1] += (lines[1].empty() ? "" : " | ") + column.title;
  }
  for (const dp_bench::Row& row : section.rows) {
    std::string line;
    for (std::size_t i = 0; i < section.columns.size(); ++i)
      line += (i ? " | " : "") +
              (i < row.cells.size() ? dp_bench::shown(row.cells[i], section.columns[i].digits) : std::string("none"));
    if (row.kind != dp_bench::Kind::measured || !row.note.empty()) line += " | " + dp_bench::remark(row);
    lines.push_back(line);
  }
  return lines;
}

}  // namespace dp::test
