// Parts of report.html: bars of devices, the table of layers, ticks and colours of charts, and what is read of a run.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/train/report/chart.h"
#include "engine/train/report/device_section.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp;
using dp::test::TemporaryFolder;
using dp::test::write_text;

RunData run_with(const std::string& name, const char* part) {
  RunData run;
  run.name = name;
  run.parts = nlohmann::ordered_json::array();
  run.parts.push_back(nlohmann::ordered_json::parse(part));
  return run;
}

const std::string kNoLayers =
    "<p class=\"soft\"><code>--profile</code> adds the slowest layers, each beside its floor.</p>\n";

std::string times_chart(const std::vector<Bar>& bars) {
  return bar_chart("Time of the recorded steps", "seconds by phase, each replica", bars);
}
std::string memory_chart(const std::vector<Bar>& bars) {
  return bar_chart("Memory", "MiB by purpose, each replica", bars);
}
std::string section(const std::string& charts) {
  return "<h2>Time and memory</h2>\n<div class=\"charts\">\n" + charts + "</div>\n";
}

TEST_CASE("each replica has a bar of its phases, with the waiting for data apart, and one of its memory") {
  RunData run = run_with("run", R"({"devices":["cpu","gpu",7],"memory":[{"weights":1048576,"other":524288},5,)"
                                R"({"weights":"x","average":-1,"workspace":2097152}]})");
  run.training["seconds_train"] = {{1, 2}, {3, 4}};
  run.training["loading_share"] = {{1, 0.25}, {3, 0.5}};  // 0.5 s and 1 s
  run.phase_sums = {{{"forward", 2}, {"waiting", 4}}, {{"waiting", 1}}, {{"forward", 3}}};
  CHECK(run.loading_seconds() == 1.5);
  CHECK(
      device_section({run}) ==
      section(times_chart({{"replica 0 cpu", {{"forward", 2}, {"waiting", 2.5}, {"data loading", 1.5}}},
                           {"replica 1 gpu", {{"waiting", 0}, {"data loading", 1.5}}},
                           {"replica 2 ", {{"forward", 3}, {"data loading", 1.5}}}}) +
              memory_chart({{"replica 0 cpu", {{"weights", 1}, {"other", 0.5}}}, {"replica 2 ", {{"workspace", 2}}}})) +
          kNoLayers);
}

TEST_CASE("bars of a pipeline name replica and stage, and those of several runs the run") {
  const char* const part = R"({"devices":["a","b","c","d"],"pipeline_stages":2,"memory":[{"w":1048576},{"w":2097152},)"
                           R"({"w":3145728},{"w":4194304}]})";
  const auto bars = [](const std::string& run) {
    return std::vector<Bar>{{run + "replica 0 stage 0 a", {{"w", 1}}},
                            {run + "replica 0 stage 1 b", {{"w", 2}}},
                            {run + "replica 1 stage 0 c", {{"w", 3}}},
                            {run + "replica 1 stage 1 d", {{"w", 4}}}};
  };
  CHECK(device_section({run_with("run", part)}) == section(memory_chart(bars(""))) + kNoLayers);
  std::vector<Bar> both = bars("x, ");
  both.push_back({"y, replica 0 ", {{"w", 8}}});
  CHECK(device_section({run_with("x", part), RunData{}, run_with("y", R"({"memory":[{"w":8388608}]})")}) ==
        section(memory_chart(both)));
  CHECK(device_section({RunData{}}) == kNoLayers);
}

TEST_CASE("the table of layers has the slowest 15 with their share and floor") {
  RunData run;
  run.summary = nlohmann::json::parse(
      R"({"layers":[{"name":"fc<","implementation":"gemm&","seconds":0.001,"floor_seconds":0.0005},3,)"
      R"({"name":"conv","implementation":"winograd","seconds":0.003},{"name":5,"seconds":"x"}]})");
  const std::string head =
      "<h3>The slowest layers</h3>\n<p class=\"soft\">Of replica 0, median of the traced steps. The floor is a lower "
      "bound: arithmetic or memory traffic at the device's rates.</p>\n<div class=\"wide\"><table><tr><th>layer</th>"
      "<th>ms</th><th>%</th><th>floor (ms)</th><th>x floor</th><th>implementation</th></tr>\n";
  const auto row = [](const char* name, const char* ms, const char* share, const char* floor, const char* ratio,
                      const char* implementation) {
    return fmt::format(
        "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>"
        "<td class=\"number\">{}</td><td>{}</td></tr>\n",
        name, ms, share, floor, ratio, implementation);
  };
  CHECK(device_section({run}) == head + row("conv", "3.000", "75.0", "-", "-", "winograd") +
                                     row("fc&lt;", "1.000", "25.0", "0.500", "2.0", "gemm&amp;") +
                                     row("", "0.000", "0.0", "-", "-", "") + "</table></div>\n");
  run.summary = {{"layers", nlohmann::json::array()}};
  for (int i = 0; i < 20; ++i)
    run.summary["layers"].push_back({{"name", "layer" + std::to_string(i)}, {"seconds", 0.0}});
  std::string rows;
  for (int i = 0; i < 15; ++i) rows += row(("layer" + std::to_string(i)).c_str(), "0.000", "0.0", "-", "-", "");
  CHECK(device_section({run}) == head + rows + "</table></div>\n");
  CHECK(device_section({run, run}).empty());
}

TEST_CASE("the time spent waiting for data has only intervals of known length") {
  RunData run;
  CHECK(run.loading_seconds() == 0);
  run.training["seconds_train"] = {{1, 2}, {2, 5}, {4, 3}, {6, 7}};
  run.training["loading_share"] = {{0, 1}, {2, 0.5}, {3, 1}, {4, 1}, {6, 0.25}};
  CHECK(run.loading_seconds() == 0.5 * 3 + 0 + 0.25 * 4);
}

TEST_CASE("a run is read from its folder: phases by replica, evaluations by kind, options by name") {
  const TemporaryFolder temp;
  write_text(temp / "metrics.jsonl",
             R"({"kind":"train","step":1,"loss":4,"phases":[{"forward":1,"note":"x"}]})"
             "\nbroken\n"
             R"({"kind":"eval","step":1,"top1":10})"
             "\n"
             R"({"kind":"eval","step":1,"top1":20,"average":true})"
             "\n"
             R"({"kind":"eval","step":1,"top1":30,"average":"yes"})"
             "\n"
             R"({"kind":"train","step":2,"loss":3,"phases":[{"forward":2,"update":5},{"forward":7}]})"
             "\n"
             R"({"kind":"train","step":3.5,"loss":2,"phases":null})"
             "\n"
             R"({"kind":"other","step":3,"loss":2})"
             "\n");
  write_text(temp / "config.toml", "lr = 0.1\nname = \"\"\nquote = \"\nmodel = \"a = b\"\nempty =\n[table]\nx = 1\n");
  write_text(temp / "env.json", R"({"parts":[{"pipeline_stages":"two","data":5},7,{"pipeline_stages":2}]})");
  const RunData run = read_run(temp.path() + "/.");
  CHECK(run.name == std::filesystem::path(temp.path()).filename().string());
  CHECK(run.summary.is_null());
  CHECK(run.end() == "-");
  CHECK(run.parts == nlohmann::ordered_json::parse(R"([{},{"pipeline_stages":2}])"));
  CHECK_FALSE(run.predictions);
  using Sums = std::vector<std::pair<std::string, double>>;
  CHECK(run.phase_sums == std::vector<Sums>{{{"forward", 3}, {"update", 5}}, {{"forward", 7}}});
  const auto values = [](const Curve& curve) {
    std::vector<std::pair<double, double>> pairs;
    for (const Point& point : curve) pairs.emplace_back(point.x, point.y);
    return pairs;
  };
  using Values = std::vector<std::pair<double, double>>;
  CHECK(values(run.curve("loss")) == Values{{1, 4}, {2, 3}});
  CHECK(run.curve("top1").empty());
  CHECK(values(run.test_curve("top1", false)) == Values{{1, 10}, {1, 30}});
  CHECK(values(run.test_curve("top1", true)) == Values{{1, 20}});
  using Options = std::vector<std::pair<std::string, std::string>>;
  CHECK(run.options == Options{{"lr", "0.1"}, {"name", ""}, {"quote", "\""}, {"model", "a = b"}});
  CHECK(run.option("model") == "a = b");
  CHECK(run.option("x").empty());
}

TEST_CASE("records that are nested deeply are ignored, and the rest of the run is read") {
  const TemporaryFolder temp;
  const std::string deep = std::string(300'000, '[') + std::string(300'000, ']');
  write_text(temp / "metrics.jsonl", R"({"kind":"eval","step":1,"top1":10})"
                                     "\n"
                                     R"({"kind":"eval","step":1,"top1":20,"x":)" +
                                         deep + "}\n" + R"({"kind":"resumed","step":1,"changes":)" + deep + "}\n" +
                                         R"({"kind":"eval","step":2,"top1":30})"
                                         "\n");
  for (const char* file : {"summary.json", "env.json", "predictions.json"})
    write_text(temp / file, R"({"end":"complete","parts":)" + deep + "}");
  const RunData run = read_run(temp.path());
  CHECK(run.test_curve("top1", false).size() == 2);
  CHECK((run.resumptions.empty() && run.parts.empty() && run.end() == "-"));
}

TEST_CASE("texts are escaped for HTML, and show invisible characters as messages do") {
  CHECK(escaped("a&b<c>d\"e'f") == "a&amp;b&lt;c&gt;d&quot;e'f");
  CHECK(escaped("a\x1f b\n\tc\x7fü") == "a\\x1f b\\x0a\\x09c\\x7fü");
  CHECK(escaped("cow\u202egpj.\u2066") == "cow\\xe2\\x80\\xaegpj.\\xe2\\x81\\xa6");
  CHECK(escaped("\u200bbee\u200e\u061c \xff") == "\\xe2\\x80\\x8bbee\\xe2\\x80\\x8e\\xd8\\x9c \\xff");
  CHECK(escaped("http://me:secret@host/<x>") == "http://***@host/&lt;x&gt;");
}

std::vector<std::string> points_of(const std::string& chart) {
  const std::string begin = "points=\"";
  const std::size_t at = chart.find(begin) + begin.size();
  std::istringstream in(chart.substr(at, chart.find('"', at) - at));
  std::vector<std::string> points;
  for (std::string point; in >> point;) points.push_back(point);
  return points;
}

TEST_CASE("a curve of more than 300 points is reduced to the means of 300 parts") {
  const auto points = [](int count) {
    Curve curve;
    for (int i = 0; i < count; ++i) curve.push_back({static_cast<double>(i), static_cast<double>(i)});
    return points_of(line_chart("Line", "", {{"", curve}}));
  };
  CHECK(points(300).size() == 300);
  CHECK(points(300).back() == "352.0,8.0");
  CHECK(points(301).size() == 300);
  CHECK(points(301).front() == "46.0,178.0");
  CHECK(points(301).back() == "351.5,8.3");  // the mean of the last two
  CHECK(points(600).size() == 300);
  CHECK(points(600).front() == "46.3,177.9");  // of the first two
  CHECK(points(600).back() == "351.7,8.1");
}

// The texts at the ticks of the vertical axis.
std::vector<std::string> ticks_of(double low, double high) {
  const std::string chart = line_chart("T", "", {{"", {{0, low}, {100, high}}}});
  std::vector<std::string> ticks;
  const std::string begin = "class=\"end\">";
  for (std::size_t at = 0; (at = chart.find(begin, at)) != std::string::npos;) {
    at += begin.size();
    ticks.push_back(chart.substr(at, chart.find('<', at) - at));
  }
  ticks.pop_back();  // of the horizontal axis
  return ticks;
}

TEST_CASE("ticks are 1, 2 or 5 times a power of ten apart, and large ones are in thousands") {
  using Ticks = std::vector<std::string>;
  CHECK(ticks_of(0, 40) == Ticks{"0", "10", "20", "30", "40"});
  CHECK(ticks_of(0, 25) == Ticks{"0", "5", "10", "15", "20", "25"});
  CHECK(ticks_of(1, 9) == Ticks{"2", "4", "6", "8"});
  CHECK(ticks_of(0, 5) == Ticks{"0", "1", "2", "3", "4", "5"});
  CHECK(ticks_of(-20000, 20000) == Ticks{"-20k", "-10k", "0", "10k", "20k"});
  CHECK(ticks_of(0, 9000) == Ticks{"0", "2000", "4000", "6000", "8000"});
  CHECK(ticks_of(-4, -4) == Ticks{"-4", "-3", "-2", "-1", "0"});
  CHECK(ticks_of(4, 4) == Ticks{"0", "1", "2", "3", "4", "5"});
}

TEST_CASE("the colours of charts repeat after eight") {
  const std::string lines = line_chart("L", "", {{"a", {{0, 1}, {1, 2}}, 7}, {"b", {{0, 1}, {1, 2}}, 9, true}});
  for (const char* part : {"\"l7\" points=\"46", "\"l1\" points=\"46", "\"c7\" cx=\"46", "\"c1\" cx=\"46",
                           "\"l7\" points=\"0,6", "\"l1\" points=\"0,6", "\"c1\" cx=\"12\""})
    CHECK_THAT(lines, Catch::Contains(part));
  CHECK_THAT(lines, !Catch::Contains("\"c7\" cx=\"12\""));
  Bar bar{"all", {}};
  for (int i = 0; i < 9; ++i) bar.parts.emplace_back("part " + std::to_string(i), 1);
  const std::string bars = bar_chart("B", "", {bar});
  CHECK_THAT(bars, Catch::Contains("<rect class=\"c0\" x=\"320.0\" y=\"16.0\" width=\"40.0\" height=\"14\">"
                                   "<title>part 8: 1</title>") &&
                       Catch::Contains("<rect class=\"c0\" width=\"12\" height=\"12\"/></svg> part 8</span>"));
  CHECK(legend_entry(10, "a<") ==
        "<span><svg viewBox=\"0 0 12 12\"><rect class=\"c2\" width=\"12\" height=\"12\"/></svg> a&lt;</span>");
}

}  // namespace
