// A self-contained HTML page: no script, no external resources, responsive, with a dark mode.
#include <dp/trainer.h>
#include <algorithm>
#include <cmath>

#include "html.h"
#include "report.h"

namespace dp_bench {
namespace {

constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--back:#fff;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--measured:#2f6fb0;--modelled:#9a6700;--published:#7a4fb5;--fourth:#1a7f37;--fifth:#c02d5c;--spread:#0b2540;--warn:#fff3cd}
@media(prefers-color-scheme:dark){:root{--back:#14171b;--ink:#e6edf3;--soft:#9aa4af;--line:#3a424b;--measured:#6cb0ee;--modelled:#e3b341;--published:#c297f5;--fourth:#57c26c;--fifth:#f4799f;--spread:#f0f6fc;--warn:#3d3213}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:76rem;background:var(--back);color:var(--ink);font:16px/1.45 system-ui,sans-serif;overflow-wrap:anywhere}
.warn{background:var(--warn);color:var(--ink);padding:.5rem .8rem;border-radius:.4rem}
h1{font-size:1.3rem}h2{font-size:1.1rem;margin-top:2rem}p,dd{color:var(--soft)}dl{font-size:.85rem}dt{font-weight:600}dd{margin:0 0 .3rem}
.bars{margin:0 0 1rem;padding:0;list-style:none}.bars li{margin:.5rem 0}
.name{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 1rem}.name span{color:var(--soft)}
svg{display:block;width:100%;height:1.1rem}
.measured{fill:var(--measured)}.modelled{fill:var(--modelled)}.published{fill:var(--published)}.spread{fill:var(--spread)}
.legend{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;font-size:.85rem;color:var(--soft)}.legend svg{width:1.4rem;height:.8rem;display:inline-block;vertical-align:-.05rem}
figure{margin:0 0 1rem;max-width:34rem}figure>svg{height:auto}figcaption{font-size:.85rem;color:var(--soft)}.below{text-align:center}svg text{font-size:11px;fill:var(--soft)}.end{text-anchor:end}.middle{text-anchor:middle}.grid{stroke:var(--line);stroke-width:1}
polyline{fill:none;stroke-width:2;stroke-linejoin:round}.dashed{stroke-dasharray:5 3;stroke-width:1.5}.legend .sample{width:2rem}
.c0{--c:var(--ink)}.c1{--c:var(--measured)}.c2{--c:var(--modelled)}.c3{--c:var(--published)}.c4{--c:var(--fourth)}.c5{--c:var(--fifth)}.c6{--c:var(--soft)}polyline{stroke:var(--c)}circle{fill:var(--c)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;overflow-wrap:normal}th,td{padding:.25rem .5rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}th{white-space:normal}
th:first-child,td:first-child,.remark{text-align:left}td.remark span{display:block;white-space:normal;min-width:9rem;overflow-wrap:anywhere;color:var(--soft)}
@media(max-width:60rem){td.remark span{white-space:nowrap}}
)css";

double number_in(const Row& row, std::size_t column) {
  const double* value = column < row.cells.size() ? std::get_if<double>(&row.cells[column]) : nullptr;
  return value ? *value : std::nan("");
}

// In units of the SVG's view box, which is 1000 wide.
std::string place(double value, double whole) { return shown(Cell(1000 * value / whole), 1); }

std::string box(const std::string& kind, const std::string& x, const std::string& width, int y, int height) {
  return "<rect class=\"" + kind + "\" x=\"" + x + "\" y=\"" + std::to_string(y) + "\" width=\"" + width +
         "\" height=\"" + std::to_string(height) + "\"/>";
}

std::string bar(const Section& section, const Row& row, double whole) {
  const Bars& bars = *section.bars;
  const double value = number_in(row, bars.value);
  if (!std::isfinite(value)) return "";
  std::string out = "<svg viewBox=\"0 0 1000 20\" preserveAspectRatio=\"none\" aria-hidden=\"true\">" +
                    box(to_string(row.kind), "0", place(value, whole), 3, 14);
  if (bars.low && bars.high) {
    const double low = number_in(row, *bars.low), high = number_in(row, *bars.high);
    if (std::isfinite(low) && std::isfinite(high))
      out += box("spread", place(low, whole), place(std::max(high - low, whole / 500), whole), 8, 4);
  }
  return out + "</svg>";
}

std::string legend(const Section& section) {
  std::string out;
  for (const Kind kind : {Kind::measured, Kind::modelled, Kind::published})
    if (std::any_of(section.rows.begin(), section.rows.end(), [&](const Row& row) { return row.kind == kind; }))
      out += std::string("<span><svg viewBox=\"0 0 20 10\">") + box(to_string(kind), "0", "20", 0, 10) + "</svg> " +
             to_string(kind) + "</span>";
  if (section.bars->low)
    out += "<span><svg viewBox=\"0 0 20 10\">" + box("spread", "0", "20", 3, 4) + "</svg> " +
           escaped(section.columns[*section.bars->low].title + " to " + section.columns[*section.bars->high].title) +
           "</span>";
  return "<p class=\"legend\">" + out + "<span>" + (section.bars->less_is_better ? "shorter" : "longer") +
         " is better</span></p>\n";
}

std::string bars_of(const Section& section) {
  const Bars& bars = *section.bars;
  double whole = 0;
  for (const Row& row : section.rows)
    for (const std::size_t column : {bars.value, bars.high.value_or(bars.value)})
      if (const double value = number_in(row, column); std::isfinite(value)) whole = std::max(whole, value);
  if (whole <= 0) return "";
  const Column& unit = section.columns[bars.value];
  std::string out = legend(section) + "<ul class=\"bars\">\n";
  for (const Row& row : section.rows) {
    const double value = number_in(row, bars.value);
    const std::string figure = std::isfinite(value) ? shown(Cell(value), unit.digits) + " " + unit.title : remark(row);
    out += "<li><div class=\"name\">" + escaped(shown(row.cells.front(), 0)) + "<span>" + escaped(figure) +
           "</span></div>" + bar(section, row, whole) + "</li>\n";
  }
  return out + "</ul>\n";
}

std::string table_of(const Section& section) {
  const bool remarks = has_remarks(section);
  std::string out = "<div class=\"wide\"><table><thead><tr>";
  for (const Column& column : section.columns) out += "<th scope=\"col\">" + escaped(column.title) + "</th>";
  out += remarks ? "<th scope=\"col\" class=\"remark\">source</th></tr></thead><tbody>\n" : "</tr></thead><tbody>\n";
  for (const Row& row : section.rows) {
    out += "<tr>";
    for (std::size_t i = 0; i < section.columns.size(); ++i)
      out += "<td>" + escaped(i < row.cells.size() ? shown(row.cells[i], section.columns[i].digits) : "-") + "</td>";
    if (remarks)
      out += std::string("<td class=\"remark\">") + to_string(row.kind) +
             (row.note.empty() ? "" : "<span>" + escaped(row.note) + "</span>") + "</td>";
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    for (const char c : dp::printable(text.substr(begin, end - begin))) switch (c) {
        case '&': out += "&amp;"; break;
        case '<': out += "&lt;"; break;
        case '>': out += "&gt;"; break;
        case '"': out += "&quot;"; break;
        default: out += c;
      }
    if (end < text.size()) out += '\n';
    begin = end + 1;
  }
  return out;
}

std::string to_html(const Report& report) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "img-src data:; base-uri 'none'; form-action 'none'\"/>\n"
      "<link rel=\"icon\" href=\"data:,\"/>\n<title>" +
      escaped("dp_bench " + report.command + ": " + report.title) + "</title>\n<style>" + kStyle +
      "</style>\n</head>\n<body>\n<h1>" + escaped(report.title) + "</h1>\n";
  for (const auto& [key, value] : report.facts)
    if (key == kWarning) out += "<p class=\"warn\">" + escaped(value) + "</p>\n";
  for (const Section& section : report.sections) {
    out += "<h2>" + escaped(section.title) + "</h2>\n";
    if (section.bars) out += bars_of(section);
    if (section.chart) out += line_chart(*section.chart);
    out += table_of(section);
    if (!section.text.empty()) out += "<p>" + escaped(section.text) + "</p>\n";
  }
  out += "<h2>Setup</h2>\n<dl>\n";
  for (const auto& [key, value] : report.facts)
    if (key != kWarning) out += "<dt>" + escaped(key) + "</dt><dd>" + escaped(value) + "</dd>\n";
  return out + "</dl>\n</body>\n</html>\n";
}

}  // namespace dp_bench
