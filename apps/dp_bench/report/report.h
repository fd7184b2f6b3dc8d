// The result of a subcommand, its output formats (text, JSON, Markdown, HTML) and files, and the statistics for it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace dp_bench {

constexpr double kMebi = 1024.0 * 1024.0;  // bytes in a MiB

// The source of a row's figures. `absent`: no figures; the note has the reason.
enum class Kind { measured, modelled, published, absent };
const char* to_string(Kind kind);

using Cell = std::variant<std::monostate, std::string, double>;

struct Column {
  std::string key;    // name in JSON
  std::string title;  // heading in tables
  int digits = 0;     // of numbers, after the decimal point
};

struct Row {
  std::vector<Cell> cells;  // at most one per column
  Kind kind = Kind::measured;
  std::string note;
  std::vector<double> samples;  // raw data behind the figures; only in JSON
};

// One bar per row, from zero to `value`, with a whisker from `low` to `high`. All three are column indices.
struct Bars {
  std::size_t value = 0;
  std::optional<std::size_t> low, high;
  bool less_is_better = true;
};

// Lines with a dot at each point; only on the page. The axis of x is logarithmic, that of y begins at 0.
struct Line {
  struct Point {
    double x = 0, y = 0;  // x is above 0
  };
  std::string label;          // in the legend; empty: no entry
  std::vector<Point> points;  // by ascending x; none: only the entry in the legend
  int color = 0;              // number of a colour; they repeat after eight
  bool dashed = false;        // and without dots
  bool level = false;         // a horizontal line through the first point, over the whole width
};
struct LineChart {
  std::string x_title, y_title;
  std::vector<Line> lines;
};

struct Section {
  std::string key, title, text;
  std::vector<Column> columns;  // the first one has the row names
  std::vector<Row> rows;
  std::optional<Bars> bars;
  std::optional<LineChart> chart{};
};

inline constexpr const char* kWarning = "warning";  // the page shows the fact with this key at its top

struct Report {
  std::string command, title;
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<Section> sections;
};

// A cell as text. "-" for an empty cell or a non-finite number.
std::string shown(const Cell& cell, int digits);
// Whether any row has a note or a kind other than `measured`.
bool has_remarks(const Section& section);
// The row's kind, with its note if it has one: "modelled: <note>".
std::string remark(const Row& row);

std::string to_text(const Section& section);
std::string to_text(const Report& report);
std::string to_json(const Report& report);
std::string to_markdown(const Report& report);
std::string to_html(const Report& report);

// A result file. It is opened before measuring, so that an unusable path fails early, and written afterwards.
class OutputFile {
 public:
  // Empty path: no file. The old content stays until write(). dp::Error(io) if the path cannot be opened for writing,
  // or is a pipe without a reader.
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const std::string& text);  // dp::Error(io)

 private:
  [[noreturn]] void fail(int error) const;
  std::string path_;
  int file_ = -1;
};

// A quantile. Interpolates linearly, like numpy's default. `share` is from 0 to 1. NaN for no values.
double quantile(std::vector<double> values, double share);
double median(const std::vector<double>& values);

struct Interval {
  double low = 0, high = 0;
};
// Contains the true median in about 95 % of cases, for any distribution. For fewer than eight values: the least and the
// greatest. For fewer than six the confidence is lower.
Interval median_interval(std::vector<double> values);

// b[i] / a[i], up to the shorter length.
std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace dp_bench
