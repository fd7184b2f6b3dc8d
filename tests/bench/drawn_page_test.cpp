// What a headless browser draws of pages whose data are written by hand. Skipped without a browser.
#include <nlohmann/json.hpp>

#include "apps/dp_bench/report/report.h"
#include "bench/browser.h"
#include "dp/report.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace dp::test;
using nlohmann::ordered_json;

namespace {

// The body of the page after its script has run, without data and script.
std::string drawn(const std::string& program, const std::string& page) {
  const TemporaryFolder folder;
  write_text(folder / "page.html", page);
  const std::string text = show(program, folder / "page.html").text;
  const auto begin = text.find("<main"), end = text.find("</main>");
  INFO(text.substr(0, 2000));
  REQUIRE(end != std::string::npos);
  return text.substr(begin, end - begin);
}

std::string drawn(const std::string& program, const ordered_json& data) {
  return drawn(program, dp::report_page("title", "text", data.dump()));
}

void check_contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    INFO(part);
    CHECK(text.find(part) != std::string::npos);
  }
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

// `digit`: of the colours, and of the single right class.
ordered_json run_of(const std::string& name, double lr) {
  ordered_json run = ordered_json::parse(R"json({
    "results": {"Acc@1 (%)": "96.03 ±0.38", "end": "complete"},
    "warnings": ["only 3 measurements of throughput"],
    "summary": {"layers": [{"name": "fc<", "implementation": "gemm&", "seconds": 0.001, "floor_seconds": 0.0005}, 3,
                           {"name": "conv", "implementation": "winograd", "seconds": 0.003}, {"name": 5, "seconds": "x"}]},
    "env": {"parts": [{"devices": ["cpu"]}, 5, {"started": "S", "ended": "E", "end": "early", "program": "dp 1",
      "host": "h", "command": ["dp_train", "a b", "it's", 7], "environment": ["lib A"], "devices": ["cpu", "gpu", 7],
      "memory": [{"weights": 1048576, "other": 524288}, 5, {"weights": "x", "average": -1, "workspace": 2097152}]}]},
    "metrics": [{"kind": "train", "step": 0, "loss": 4, "top1": 1, "lr": 0.05},
                {"kind": "train", "step": 5, "loss": 2, "top1": "x", "lr": 0.05},
                {"kind": "train", "step": 10, "loss": 1, "top1": 9, "lr": 0.05, "grad_norm": null},
                {"kind": "eval", "step": 10, "loss": 3, "average": false},
                {"kind": "eval", "step": 10, "loss": 0, "average": true},
                {"kind": "resumed", "step": 7, "changes": [7, {"option": 5}, {"option": "lr", "before": null, "now": 0.5},
                  {"option": "a", "before": "x", "now": true}]}],
    "phases": [{"forward": 2, "waiting": 1, "none": 0}, {"waiting": 4}],
    "predictions": {"step": 21, "average": true, "samples": 30, "classes": ["cat", "größe <abcdef", "exactly 10"],
      "confusion": [[8, 2, 0], [0, 7, 13], [0, 0, 0]],
      "wrong": [{"index": 7, "true": 1, "predicted": 2, "probability": 0.875, "image": "AAAA"}]}
  })json");
  run["name"] = name;
  run["config"] =
      "# model = 5\nmodel = \"tiny\"\ndataset = \"digits\"\nlr = " + ordered_json(lr).dump() + "\n[resolved]\nx = 1\n";
  return run;
}

}  // namespace

TEST_CASE("a browser draws every part of the page of a run") {
  const std::string program = browser();
  if (program.empty()) DP_SKIP("no chromium is installed");
  const std::string page = drawn(program, ordered_json{{"runs", {run_of("run <b>", 0.05)}}});
  check_contains(
      page,
      {"<h1>run &lt;b&gt;</h1>", "<p class=\"soft\">tiny on digits, cpu, gpu</p>",
       "<ul class=\"warn\"><li>only 3 measurements of throughput</li></ul>",
       "<th scope=\"row\">Acc@1 (%)</th><td class=\"number\">96.03 ±0.38</td>",
       // Loss: y from 0 to 4 is 178 to 8, x from 0 to 10 is 46 to 352.
       "aria-label=\"Loss: train ends at 1, test ends at 3, test, EMA ends at 0\"", "points=\"46,8 199,93 352,135.5\"",
       "cx=\"352\" cy=\"50.5\" r=\"3\"><title>step 10: 3</title>",
       "<path class=\"grid\" d=\"M46 93H352\"></path><text x=\"42\" y=\"97\" class=\"end\">2</text>",
       "<text x=\"107.2\" y=\"194\" class=\"middle\">2</text>", "<text x=\"352\" y=\"194\" class=\"middle\">10</text>",
       "> test, EMA</span>", "points=\"46,42 199,42 352,42\"",  // the rate is constant: its axis begins at 0
       // Predictions
       "The moving average of the weights at step 21, 30 test images.",
       "<text x=\"80\" y=\"219\" class=\"end\">größe &lt;ab…",
       "fill-opacity=\"0.8\" d=\"M84 78h91.667v91.667h-91.667z\"><title>cat taken for cat: 8 (80.0 %)</title>",
       "<title>größe &lt;abcdef taken for exactly 10: 13 (65.0 %)</title>", "class=\"middle on\">13</text>",
       "class=\"middle off\">2</text>", "wrong; strongest: 65.0 % of the class",
       "<tr><th scope=\"row\">größe &lt;abcdef</th><td class=\"number\">35.0 %</td><td "
       "class=\"number\">20</td><td>exactly 10 "
       "(13)</td></tr><tr><th scope=\"row\">cat</th>",
       "<img src=\"data:image/png;base64,AAAA\" alt=\"test image 7\"><figcaption><b>exactly 10</b> 87.5 %<small>true: "
       "größe &lt;abcdef</small>",
       // Devices: the longest bar is 360 wide.
       "<rect class=\"c0\" x=\"0\" y=\"16\" width=\"180\" height=\"14\"><title>forward: 2</title>",
       "<rect class=\"c1\" x=\"180\" y=\"16\" width=\"90\" height=\"14\"><title>waiting: 1</title>",
       ">replica 0 cpu</text>", ">replica 1 gpu</text>", "<text x=\"360\" y=\"46\" class=\"end\">4</text>",
       "<title>weights: 1</title>", ">replica 2 </text>", "<title>workspace: 2</title>",
       "<tr><th scope=\"row\">conv</th><td class=\"number\">3.000</td><td class=\"number\">75.0</td><td "
       "class=\"number\">-</td>"
       "<td class=\"number\">-</td><td>winograd</td></tr><tr><th scope=\"row\">fc&lt;</th><td "
       "class=\"number\">1.000</td><td "
       "class=\"number\">25.0</td><td class=\"number\">0.500</td><td class=\"number\">2.0</td><td>gemm&amp;</td></tr>",
       "<tr><th scope=\"row\">lr</th><td>0.05</td></tr></tbody>",
       "started S, ended E (early)\ndp 1 on h\ndp_train 'a b' 'it'\\''s'\nlib A\n\nresumed at step 7, lr none -&gt; "
       "0.5, a x -&gt; "
       "true\n</pre>"});
  for (const char* absent : {"Gradient norm", "was not drawn", "NaN", "Infinity", "undefined", "--profile"})
    CHECK(page.find(absent) == std::string::npos);
}

TEST_CASE("a browser draws several runs in common charts, with the options in which they differ") {
  const std::string program = browser();
  if (program.empty()) DP_SKIP("no chromium is installed");
  ordered_json third = run_of("c", 0.1);
  third["predictions"] = nullptr;
  const std::string page = drawn(program, ordered_json{{"runs", {run_of("a", 0.05), run_of("b", 0.1), third}}});
  check_contains(
      page, {"<h1>a, b, c</h1>", "<li><b>a</b>: only 3 measurements", "<th scope=\"col\" class=\"number\">b</th>",
             "<polyline class=\"c1 \" points=\"0,6 24,6\"></polyline></svg> b, train",
             "<polyline class=\"c1 dashed\" points=\"0,6 24,6\"></polyline><circle class=\"c1\" cx=\"12\" cy=\"6\" "
             "r=\"3\"></circle></svg> b, test</span>",
             "<polyline class=\"c0 dotted\"", "Confusion matrix, b", "<summary>Classes and errors of a</summary>",
             ">a, replica 0 cpu</text>", "<h3>Different</h3>", "<td>0.05</td><td>0.1</td><td>0.1</td>",
             "<h3>The same</h3>", "<h3>c</h3><pre>"});
  CHECK(count(page, "Confusion matrix, c") == 0);
  CHECK(count(page, "The slowest layers") == 0);
}

TEST_CASE("a browser draws many classes in shades, and leaves out what is damaged or missing") {
  const std::string program = browser();
  if (program.empty()) DP_SKIP("no chromium is installed");
  ordered_json many = run_of("run", 1);
  many["predictions"]["classes"] = ordered_json::array();
  std::vector<std::vector<int>> counts(21, std::vector<int>(21));
  counts[0][0] = 4, counts[0][20] = 1, counts[1][1] = 3, counts[20][20] = 5;
  many["predictions"]["confusion"] = counts;
  many["phases"] = 5, many["summary"] = nullptr;
  const std::string shades = drawn(program, ordered_json{{"runs", {many}}});
  check_contains(shades, {"<path class=\"cell c0\" fill-opacity=\"0.8\" d=\"M34 30h15.476v15.476h-15.476z\">",
                          "<path class=\"cell c0\" fill-opacity=\"1\" d=\"M49.476 45.476h15.476v15.476h-15.476zM343.52",
                          "class=\"end\">10</text>", "adds the slowest layers"});
  CHECK(count(shades, " taken for ") == 0);  // a tooltip
  CHECK(count(shades, "Time of the recorded steps") == 0);

  for (const auto& [pointer, value] : std::vector<std::pair<std::string, ordered_json>>{{"/step", "1"},
                                                                                        {"/samples", -1},
                                                                                        {"/average", 0},
                                                                                        {"/classes/1", 7},
                                                                                        {"/classes/3", "more"},
                                                                                        {"/confusion/0", {1, 2}},
                                                                                        {"/confusion/0/1", 0.5},
                                                                                        {"/wrong", 7},
                                                                                        {"/wrong/0/true", 3},
                                                                                        {"/wrong/0/probability", 1.5},
                                                                                        {"/wrong/0/image", "\"><b>"}}) {
    INFO(pointer);
    ordered_json damaged = run_of("run", 1);
    damaged["predictions"][ordered_json::json_pointer(pointer)] = value;
    const std::string page = drawn(program, ordered_json{{"runs", {damaged}}});
    check_contains(page, {"There is no confusion matrix", "Time and memory", "History and environment"});
    CHECK(count(page, "<b>\"") == 0);
  }

  ordered_json empty{{"name", "run"}, {"results", {{"end", "-"}}}, {"warnings", ordered_json::array()}};
  for (const char* name : {"summary", "env", "config", "metrics", "phases", "predictions"}) empty[name] = nullptr;
  const std::string page = drawn(program, ordered_json{{"runs", {empty}}});
  check_contains(page, {"<h2>Results</h2>", "<h3>run</h3>"});
  CHECK(count(page, "was not drawn") == 0);
  empty["metrics"] = ordered_json::array({nullptr});
  check_contains(drawn(program, ordered_json{{"runs", {empty}}}), {"was not drawn", "<h2>Options</h2>"});
}

TEST_CASE("a browser draws bars, charts, tables and texts of a report of dp_bench") {
  const std::string program = browser();
  if (program.empty()) DP_SKIP("no chromium is installed");
  using namespace dp_bench;
  Report report{"step", "a <b>", {{"command", "dp_bench <step>"}, {kWarning, "other processes were busy"}}, {}};
  Section section{"rows",  "Title <s>",
                  "Text.", {{"what", "what"}, {"ms", "ms", 2}, {"low", "from", 2}, {"high", "to", 2}},
                  {},      Bars{1, 2, 3, true}};
  section.rows.push_back({{std::string("first <b>"), 2.0, 1.5, 2.5}, Kind::measured, "", {2.0}});
  section.rows.push_back({{std::string("second"), 4.0}, Kind::modelled, "by > constants", {}});
  section.rows.push_back({{std::string("third")}, Kind::absent, "needs a GPU", {}});
  section.rows.push_back({{std::string("fourth"), 3.0, 3.0, 3.0}, Kind::published, "", {}});
  section.chart = LineChart{"size <s>",
                            "img/s",
                            {{.label = "a & b", .points = {{1, 50}, {4, 100}, {0, 900}, {16, 0}}},
                             {.label = "", .points = {{4, 25}}, .color = 2, .dashed = true},
                             {.label = "base", .points = {{64, 50}}, .color = 1, .level = true},
                             {.label = "only a name", .points = {}, .dashed = true}}};
  report.sections = {section, {"plain", "P", "", {{"what", "what"}, {"ms", "ms", 1}}, {{{std::string("x"), 2.0}}}, {}}};
  const std::string page = drawn(program, to_html(report));
  check_contains(
      page,
      {"<h1>a &lt;b&gt;</h1><p class=\"warn\">other processes were busy</p><h2>Title &lt;s&gt;</h2>",
       "<rect class=\"c0\" x=\"0\" y=\"3\" width=\"500\" height=\"14\"></rect><rect class=\"spread\" x=\"375\" y=\"8\" "
       "width=\"250\" height=\"4\">",
       "first &lt;b&gt;<span>2.00 ms</span>", "<rect class=\"c4\" x=\"0\" y=\"3\" width=\"1000\" height=\"14\">",
       "<span>not run: needs a GPU</span></div></li>",
       "<rect class=\"spread\" x=\"750\" y=\"8\" width=\"2\" height=\"4\">", "> measured</span>", "> modelled</span>",
       "> published</span>", "> from to to</span><span>shorter is better</span>",
       // The chart: x is logarithmic from 46 to 352, y from 198 to 8.
       "aria-label=\"img/s against size ", ": a &amp; b ends at 0, base ends at 50\"",
       "points=\"46,103 199,8 352,198\"", "class=\"c2 dashed\" points=\"199,150.5\"",
       "class=\"c1 \" points=\"46,103 352,103\"", "> only a name</span>",
       "<figcaption class=\"below\">size &lt;s&gt;</figcaption>", "class=\"middle\">4</text>",
       "<tr><th scope=\"row\">second</th><td class=\"number\">4.00</td><td class=\"number\">-</td><td "
       "class=\"number\">-</td><td "
       "class=\"note\">modelled<span>by &gt; constants</span></td></tr>",
       "<p class=\"soft\">Text.</p>", "<tr><th scope=\"row\">x</th><td class=\"number\">2.0</td></tr>",
       "<h2>Setup</h2><dl><dt>command</dt><dd>dp_bench &lt;step&gt;</dd></dl>"});
  CHECK(count(page, "<circle class=\"c2\"") == 0);
  CHECK(count(page, "<figure") == 1);
}
