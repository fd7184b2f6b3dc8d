// The page about runs.
#include "dp/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "dp/shell.h"
#include "engine/base/files.h"
#include "engine/train/report/chart.h"
#include "engine/train/report/device_section.h"
#include "engine/train/report/predictions_section.h"
#include "engine/train/report/run_data.h"

namespace dp {
namespace {

constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--back:#fff;--ink:#1b1f24;--soft:#57606a;--line:#d8dee4;--warn:#fff3cd;--s0:#2166ac;--s1:#c2570c;--s2:#1a7f37;--s3:#8250df;--s4:#8a6d00;--s5:#cf222e;--s6:#0a7ea4;--s7:#6e7781}
@media(prefers-color-scheme:dark){:root{--back:#14171b;--ink:#e6edf3;--soft:#9aa4af;--line:#363d45;--warn:#3d3213;--s0:#6cb0ee;--s1:#f0883e;--s2:#56d364;--s3:#c297f5;--s4:#e3b341;--s5:#ff7b72;--s6:#57c7e3;--s7:#9aa4af}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:80rem;background:var(--back);color:var(--ink);font:16px/1.45 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.35rem;margin:.2rem 0}h2{font-size:1.1rem;margin:2rem 0 .5rem}h3{font-size:1rem;margin:1rem 0 .3rem}small,.soft{color:var(--soft)}
.warn{background:var(--warn);padding:.5rem 1.8rem;border-radius:.4rem;margin:.8rem 0}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,20rem),1fr));gap:1rem}
figure{margin:0}figure>svg{width:100%;display:block}
svg text{font-size:11px;fill:var(--soft)}.end{text-anchor:end}.middle{text-anchor:middle}.grid{stroke:var(--line);stroke-width:1}
polyline{fill:none;stroke-width:1.6;stroke-linejoin:round}
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1rem;font-size:.85rem;color:var(--soft);margin:.2rem 0}.legend svg{width:.75rem;height:.75rem;display:inline-block}.legend svg.line{width:1.5rem}
.wide{overflow-x:auto}.wide th{white-space:nowrap;overflow-wrap:normal}.wide td{overflow-wrap:normal}.dashed{stroke-dasharray:5 3}.dotted{stroke-dasharray:1.5 3}table{border-collapse:collapse;font-size:.85rem}th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
.frame{fill:none;stroke:var(--line)}.counts text{font-size:inherit}.on{fill:var(--back)}.off{fill:var(--ink)}
.classes{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr));gap:1.5rem;align-items:start}.classes figure{max-width:34rem}.classes th{overflow-wrap:normal}.classes th,.classes td{padding:.25rem .35rem}
.wrong{display:grid;grid-template-columns:repeat(auto-fill,minmax(4.4rem,1fr));gap:.8rem}.wrong figcaption{font-size:.85rem;line-height:1.3}.wrong image{image-rendering:pixelated}summary{cursor:pointer;font-size:.85rem;padding:.4rem 0}
td.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}pre{font-size:.8rem;white-space:pre-wrap}
)css";

std::string colors() {
  std::string css;
  for (int i = 0; i < 8; ++i) css += fmt::format(".c{0}{{fill:var(--s{0})}}.l{0}{{stroke:var(--s{0})}}", i);
  return css;
}

double last(const Curve& curve) { return curve.empty() ? std::numeric_limits<double>::quiet_NaN() : curve.back().y; }

std::string shown(double value, const char* format) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : "-";
}

// The last evaluation that counts: of the moving average, if there is one.
bool has_average(const RunData& run) { return !run.test_curve("loss", true).empty(); }

double test_images(const RunData& run) {
  const bool known = !run.parts.empty() && run.parts.back().contains("data") &&
                     run.parts.back().at("data").value("test_images", 0) > 0;
  return known ? run.parts.back().at("data").at("test_images").get<double>() : 0;
}

// Half of the interval that holds the true accuracy with 95 %, in percent; 0: unknown.
double accuracy_margin(const RunData& run) {
  const double share = last(run.test_curve("top1", has_average(run))) / 100, images = test_images(run);
  return images > 0 && std::isfinite(share) ? 196 * std::sqrt(std::max(share * (1 - share), 0.0) / images) : 0;
}

// Why figures of this run should be read with care.
std::vector<std::string> warnings(const RunData& run) {
  std::vector<std::string> found;
  if (run.summary.is_null())
    found.push_back("there is no summary yet: the run is active, or has failed");
  else if (const std::string end = run.summary.value("end", ""); end.starts_with("error: "))
    found.push_back("the run was ended by an " + end);
  else if (run.summary.value("interrupted", false))
    found.push_back("the run was interrupted before its end");
  if (const double margin = accuracy_margin(run); margin > 0.5)
    found.push_back(
        fmt::format("the test set has {:.0f} images: the accuracy is known to ±{:.1f} percentage points only",
                    test_images(run), margin));
  std::vector<double> rates;
  for (const Point& point : run.curve("images_per_second")) rates.push_back(point.y);
  if (rates.size() < 10) {
    found.push_back(fmt::format("only {} measurements of throughput", rates.size()));
  } else {
    std::sort(rates.begin(), rates.end());
    const double middle = rates[rates.size() / 2], spread = rates[rates.size() * 3 / 4] - rates[rates.size() / 4];
    if (spread > 0.2 * middle)
      found.push_back(fmt::format("throughput varied: the middle half of its measurements spans {:.0f} % of the median",
                                  100 * spread / middle));
  }
  const Curve loading = run.curve("loading_share");
  double sum = 0;
  for (const Point& point : loading) sum += point.y;
  if (!loading.empty() && sum / static_cast<double>(loading.size()) > 0.1)
    found.push_back(fmt::format("training spent {:.0f} % of the time waiting for data; raise --workers",
                                100 * sum / static_cast<double>(loading.size())));
  std::int64_t skipped = 0;
  for (const Point& point : run.curve("skipped")) skipped += static_cast<std::int64_t>(point.y);
  if (skipped > 0) found.push_back(fmt::format("{} steps were skipped: a loss or gradient was not finite", skipped));
  return found;
}

std::string warning_box(const std::vector<RunData>& runs) {
  std::string items;
  for (const RunData& run : runs)
    for (const std::string& warning : warnings(run))
      items += "<li>" + (runs.size() > 1 ? "<b>" + escaped(run.name) + "</b>: " : "") + escaped(warning) + "</li>";
  return items.empty() ? "" : "<ul class=\"warn\">" + items + "</ul>\n";
}

using Cells = std::vector<std::string>;

std::string row(const std::string& name, const Cells& cells, bool numbers) {
  std::string text = "<tr><th>" + escaped(name) + "</th>";
  for (const std::string& cell : cells) text += (numbers ? "<td class=\"number\">" : "<td>") + escaped(cell) + "</td>";
  return text + "</tr>\n";
}

std::string table(const std::vector<RunData>& runs, const std::string& rows) {
  std::string head;
  for (const RunData& run : runs) head += "<th>" + escaped(run.name) + "</th>";
  return "<div class=\"wide\"><table><tr><th></th>" + head + "</tr>\n" + rows + "</table></div>\n";
}

Cells cells_of(const std::vector<RunData>& runs, const std::function<std::string(const RunData&)>& cell) {
  Cells cells;
  for (const RunData& run : runs) cells.push_back(cell(run));
  return cells;
}

std::string results(const std::vector<RunData>& runs) {
  // An active or killed run has no summary: then the last value of `curve` is shown.
  const auto of_summary = [&](const char* field, const char* format, const char* curve = nullptr) {
    return cells_of(runs, [&](const RunData& run) {
      const bool there = run.summary.is_object() && run.summary.contains(field) && run.summary[field].is_number();
      if (there) return shown(run.summary[field].get<double>(), format);
      return curve != nullptr && run.summary.is_null() ? shown(last(run.curve(curve)), format) : std::string("-");
    });
  };
  const auto of_test = [&](const char* field, const char* format) {
    return cells_of(runs,
                    [&](const RunData& run) { return shown(last(run.test_curve(field, has_average(run))), format); });
  };
  std::string rows = row("Acc@1 (%)",
                         cells_of(runs,
                                  [](const RunData& run) {
                                    const double margin = accuracy_margin(run);
                                    return shown(last(run.test_curve("top1", has_average(run))), "{:.2f}") +
                                           (margin > 0 ? fmt::format(" ±{:.2f}", margin) : "");
                                  }),
                         true);
  rows += row("Acc@5 (%)", of_test("top5", "{:.2f}"), true);
  rows += row("test loss", of_test("loss", "{:.4g}"), true);
  rows += row("train loss", of_summary("train_loss", "{:.4g}", "loss"), true);
  rows += row("epochs", of_summary("epochs", "{:.0f}"), true);
  rows += row("steps", of_summary("steps", "{:.0f}", "step"), true);
  rows += row("images/s", of_summary("images_per_second", "{:.0f}"), true);
  rows += row("training time (s)", of_summary("seconds_train", "{:.1f}", "seconds_train"), true);
  rows += row("end", cells_of(runs, [](const RunData& run) { return run.end(); }), false);
  return "<h2>Results</h2>\n" + table(runs, rows);
}

// The curves of all runs in one chart; `name` for the label of a single run.
std::string curves(const std::vector<RunData>& runs, const std::string& title, const std::string& unit,
                   const std::vector<std::pair<std::string, std::function<Curve(const RunData&)>>>& kinds) {
  std::vector<Series> series;
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      const auto& [name, curve] = kinds[kind];
      const std::string label = runs.size() == 1 ? name : runs[i].name + (kinds.size() == 1 ? "" : ", " + name);
      const bool test = name.starts_with("test");
      // One color for each curve of a single run, or for each of several runs.
      const auto color = static_cast<int>(runs.size() == 1 ? kind : i);
      const char* const dash = runs.size() == 1 || !test ? "" : name.ends_with("EMA") ? " dotted" : " dashed";
      series.push_back({label, curve(runs[i]), color, test, dash});
    }
  return line_chart(title, unit, series);
}

std::string charts(const std::vector<RunData>& runs) {
  const auto train = [](const char* field) { return [field](const RunData& run) { return run.curve(field); }; };
  const auto test = [](const char* field, bool average) {
    return [field, average](const RunData& run) { return run.test_curve(field, average); };
  };
  std::string page = "<h2>Curves</h2>\n<p class=\"soft\">Over optimizer steps.</p>\n<div class=\"charts\">\n";
  page += curves(runs, "Loss", "",
                 {{"train", train("loss")}, {"test", test("loss", false)}, {"test, EMA", test("loss", true)}});
  page += curves(runs, "Accuracy", "Acc@1, %",
                 {{"train", train("top1")}, {"test", test("top1", false)}, {"test, EMA", test("top1", true)}});
  page += curves(runs, "Throughput", "images/s", {{"training", train("images_per_second")}});
  page += curves(runs, "Learning rate", "", {{"rate", train("lr")}});
  page += curves(runs, "Time spent waiting for data", "part of the time", {{"waiting", train("loading_share")}});
  page += curves(runs, "Gradient norm", "", {{"before clipping", train("grad_norm")}});
  return page + "</div>\n";
}

std::string options_table(const std::vector<RunData>& runs) {
  std::vector<std::string> names;
  for (const RunData& run : runs)
    for (const auto& [name, value] : run.options)
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  std::string same, different;
  for (const std::string& name : names) {
    const Cells cells = cells_of(runs, [&](const RunData& run) { return run.option(name); });
    const bool all_same = std::all_of(cells.begin(), cells.end(), [&](const auto& cell) { return cell == cells[0]; });
    (all_same ? same : different) += row(name, all_same ? Cells{cells[0]} : cells, false);
  }
  std::string page = "<h2>Options</h2>\n";
  if (!different.empty()) page += "<h3>Different</h3>\n" + table(runs, different) + "<h3>The same</h3>\n";
  return page + "<div class=\"wide\"><table>" + same + "</table></div>\n";
}

std::string joined(const nlohmann::ordered_json& texts, const char* between) {
  std::string out;
  if (texts.is_array())
    for (const auto& text : texts)
      if (text.is_string()) out += (out.empty() ? "" : between) + text.get<std::string>();
  return out;
}

std::string command_of(const nlohmann::ordered_json& part) {
  nlohmann::ordered_json words = part.value("command", nlohmann::ordered_json());
  if (words.is_array())
    for (auto& word : words)
      if (word.is_string()) word = shell_argument(word.get<std::string>());
  return joined(words, " ");
}

std::string value_text(const nlohmann::json& value) {
  if (value.is_null()) return "none";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string history(const RunData& run) {
  std::string text;
  for (const nlohmann::ordered_json& part : run.parts) {
    const auto field = [&](const char* name) {
      return part.contains(name) && part.at(name).is_string() ? part.at(name).get<std::string>() : "-";
    };
    text += fmt::format("started {}, {}\n{} on {}\n{}\n{}\n\n", field("started"),
                        part.contains("ended") ? fmt::format("ended {} ({})", field("ended"), field("end"))
                                               : "no end recorded: it is active, or was killed",
                        field("program"), field("host"), command_of(part),
                        joined(part.value("environment", nlohmann::ordered_json()), "\n"));
  }
  for (const nlohmann::json& line : run.resumptions) {
    text += fmt::format("resumed at step {}", line.value("step", std::int64_t{0}));
    for (const auto& change : line.value("changes", nlohmann::json::array()))
      text +=
          fmt::format(", {} {} -> {}", change.value("option", ""), value_text(change.value("before", nlohmann::json())),
                      value_text(change.value("now", nlohmann::json())));
    text += "\n";
  }
  std::string lines;  // escaped() writes one line
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines += escaped(text.substr(begin, end - begin)) + "\n";
    begin = end + 1;
  }
  return "<h3>" + escaped(run.name) + "</h3>\n<pre>" + lines + "</pre>\n";
}

std::string title_of(const std::vector<RunData>& runs) {
  std::string title;
  for (const RunData& run : runs) title += (title.empty() ? "" : ", ") + run.name;
  return title;
}

std::string subtitle(const std::vector<RunData>& runs) {
  const RunData& run = runs.front();
  if (runs.size() > 1 || run.parts.empty()) return "";
  const auto& devices = run.parts.back().value("devices", nlohmann::ordered_json());
  return "<p class=\"soft\">" +
         escaped(run.option("model") + " on " + run.option("dataset") + ", " + joined(devices, ", ")) + "</p>\n";
}

std::string html(const std::vector<RunData>& runs) {
  std::string page =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">\n<meta http-equiv=\"Content-Security-Policy\" "
      "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'\">\n"
      "<title>" +
      escaped(title_of(runs)) + "</title>\n<style>" + std::string(kStyle) + colors() + "</style></head>\n<body>\n<h1>" +
      escaped(title_of(runs)) + "</h1>\n";
  page += subtitle(runs) + warning_box(runs) + results(runs) + charts(runs) + predictions_section(runs) +
          device_section(runs) + options_table(runs);
  page += "<h2>History and environment</h2>\n";
  for (const RunData& run : runs) page += history(run);
  return page + "</body></html>\n";
}

}  // namespace

void write_report(const std::vector<std::string>& run_folders, const std::string& file) {
  std::vector<RunData> runs;
  for (const std::string& folder : run_folders) runs.push_back(read_run(folder));
  write_file_atomically(file, html(runs));
}

}  // namespace dp
