// What a subcommand has to say, before anybody decides how it looks: as text, JSON or HTML.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace dp_bench {

// Where a row's figures come from. `absent`: there are none, the note says why.
enum class Kind { measured, modelled, published, absent };
const char* to_string(Kind kind);

using Cell = std::variant<std::monostate, std::string, double>;

struct Column {
  std::string key;    // its name in JSON
  std::string title;  // for a person
  int digits = 0;     // after the point, of numbers
};

struct Row {
  std::vector<Cell> cells;  // as many as columns, or fewer
  Kind kind = Kind::measured;
  std::string note;
  std::vector<double> samples;  // what the figures were made of; in JSON alone
};

// One bar a row, from zero to `value`; with a whisker between `low` and `high`. Columns, by number.
struct Bars {
  std::size_t value = 0;
  std::optional<std::size_t> low, high;
  bool less_is_better = true;
};

struct Section {
  std::string key, title, text;
  std::vector<Column> columns;  // the first names the row
  std::vector<Row> rows;
  std::optional<Bars> bars;
};

struct Report {
  std::string command, title;
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<Section> sections;
};

// A cell as a person reads it; "-" where there is nothing.
std::string shown(const Cell& cell, int digits);
// Whether any row of the section is not simply measured, or has a note.
bool has_remarks(const Section& section);
// "measured", or with its note "modelled: ..."
std::string remark(const Row& row);

std::string to_text(const Section& section);
std::string to_text(const Report& report);
std::string to_json(const Report& report);
std::string to_markdown(const Report& report);
std::string to_html(const Report& report);

}  // namespace dp_bench
