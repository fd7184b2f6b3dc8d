#include "report.h"

#include <dp/error.h>
#include <dp/report.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

namespace dp_bench {
namespace {

constexpr int kSchema = 1;               // of JSON: docs/guide/benchmarking.md
constexpr int kReaderPatience = 10'000;  // milliseconds to wait for the reader of a full pipe

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

// JSON, and the page that draws it.
namespace {

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

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.9g", value);
  return buffer;
}

std::string json_of(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return quoted(*text);
  const auto* value = std::get_if<double>(&cell);
  return value ? json_number(*value) : "null";
}

template <typename Items, typename Write>
std::string json_list(const Items& items, const std::string& separator, const Write& write) {
  std::string out;
  for (const auto& item : items) out += (out.empty() ? "" : separator) + write(item);
  return out;
}

std::string json_of(const Section& section, const Row& row) {
  std::string out = "{\"kind\":" + quoted(to_string(row.kind));
  for (std::size_t i = 0; i < section.columns.size(); ++i)
    out += ',' + quoted(section.columns[i].key) + ':' + (i < row.cells.size() ? json_of(row.cells[i]) : "null");
  if (!row.note.empty()) out += ",\"note\":" + quoted(row.note);
  if (!row.samples.empty()) out += ",\"samples\":[" + json_list(row.samples, ",", json_number) + "]";
  return out + '}';
}

// What the page draws: the keys of columns.
std::string json_of(const Bars& bars, const std::vector<Column>& columns) {
  const auto key = [&](const char* name, std::optional<std::size_t> column) {
    return column ? "\"" + std::string(name) + "\":" + quoted(columns[*column].key) + ',' : std::string();
  };
  return ",\"bars\":{" + key("value", bars.value) + key("low", bars.low) + key("high", bars.high) +
         "\"less_is_better\":" + (bars.less_is_better ? "true}" : "false}");
}

std::string json_of(const Line& line) {
  return "{\"label\":" + quoted(line.label) + ",\"color\":" + std::to_string(line.color) +
         ",\"dashed\":" + (line.dashed ? "true" : "false") + ",\"level\":" + (line.level ? "true" : "false") +
         ",\"points\":[" +
         json_list(line.points, ",",
                   [](const Line::Point& p) { return '[' + json_number(p.x) + ',' + json_number(p.y) + ']'; }) +
         "]}";
}

std::string json_of(const LineChart& chart) {
  return ",\"chart\":{\"x\":" + quoted(chart.x_title) + ",\"y\":" + quoted(chart.y_title) + ",\"lines\":[" +
         json_list(chart.lines, ",", [](const Line& line) { return json_of(line); }) + "]}";
}

std::string json_of(const Section& section) {
  return "{\"key\":" + quoted(section.key) + ",\"title\":" + quoted(section.title) +
         ",\"text\":" + quoted(section.text) + ",\"columns\":{" +
         json_list(section.columns, ",", [](const Column& c) { return quoted(c.key) + ':' + quoted(c.title); }) +
         "},\"digits\":{" +
         json_list(section.columns, ",",
                   [](const Column& c) { return quoted(c.key) + ':' + std::to_string(c.digits); }) +
         "}" + (section.bars ? json_of(*section.bars, section.columns) : "") +
         (section.chart ? json_of(*section.chart) : "") + ",\"rows\":[\n  " +
         json_list(section.rows, ",\n  ", [&](const Row& row) { return json_of(section, row); }) + "]}";
}

}  // namespace

std::string to_json(const Report& report) {
  return "{\"program\":\"dp_bench\",\"schema\":" + std::to_string(kSchema) + ",\"command\":" + quoted(report.command) +
         ",\"title\":" + quoted(report.title) + ",\n\"facts\":{" +
         json_list(report.facts, ",\n ",
                   [](const auto& fact) { return quoted(fact.first) + ':' + quoted(fact.second); }) +
         "},\n\"sections\":[\n " +
         json_list(report.sections, ",\n ", [](const Section& section) { return json_of(section); }) + "]}\n";
}

std::string to_html(const Report& report) {
  return dp::report_page("dp_bench " + report.command + ": " + report.title, to_text(report), to_json(report));
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  // O_NONBLOCK: opening a pipe without a reader fails instead of blocking.
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
  if (file_ < 0) fail(errno);
}

OutputFile::~OutputFile() {
  if (file_ >= 0) ::close(file_);
}

void OutputFile::fail(int error) const {
  const std::string why = error == ENXIO ? "it is a pipe or socket without a reader" : std::strerror(error);
  throw dp::Error(dp::ErrorCode::io,
                  "cannot write " + path_ + ": " + why + "; choose a writable folder with free space");
}

void OutputFile::write(const std::string& text) {
  if (file_ < 0) return;
  if (::ftruncate(file_, 0) != 0 && errno != EINVAL) fail(errno);  // EINVAL: a pipe or a device
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(file_, text.data() + done, text.size() - done);
    if (wrote >= 0) done += static_cast<std::size_t>(wrote);
    if (wrote >= 0 || errno == EINTR) continue;
    pollfd ready{file_, POLLOUT, 0};
    if (errno != EAGAIN) fail(errno);
    if (::poll(&ready, 1, kReaderPatience) == 0) fail(ETIMEDOUT);
  }
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

double median(const std::vector<double>& values) { return quantile(values, 0.5); }

Interval median_interval(std::vector<double> values) {
  if (values.empty()) return {std::nan(""), std::nan("")};
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  const double skip = std::max(0.0, std::floor((count - 1.96 * std::sqrt(count)) / 2));
  const auto left_out = static_cast<std::size_t>(skip);
  return {values[left_out], values[values.size() - 1 - left_out]};
}

std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> out;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) out.push_back(b[i] / a[i]);
  return out;
}

}  // namespace dp_bench
