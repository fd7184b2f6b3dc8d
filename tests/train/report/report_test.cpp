// report.html: what it shows, and that no input breaks it.
#include "dp/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/train/report/chart.h"
#include "support/catch.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

namespace {

using namespace dp;
using dp::test::expect_error;
using dp::test::read_text;
using dp::test::run_until;
using dp::test::TemporaryFolder;
using dp::test::tiny_options;
using dp::test::tiny_run;
using dp::test::write_text;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

// All texts between `begin` and `end`, without their SVG images.
std::vector<std::string> texts(const std::string& page, const std::string& begin, const std::string& end) {
  std::vector<std::string> found;
  for (std::size_t at = 0; (at = page.find(begin, at)) != std::string::npos;) {
    at += begin.size();
    std::string text = page.substr(at, page.find(end, at) - at);
    for (std::size_t svg = 0; (svg = text.find("<svg")) != std::string::npos;)
      text.erase(svg, text.find("</svg>", svg) + 6 - svg);
    found.push_back(text);
  }
  return found;
}

// The images' text may contain anything by chance.
std::string without_images(std::string page) {
  const std::string begin = "href=\"data:image/png;base64,";
  for (std::size_t at = 0; (at = page.find(begin, at)) != std::string::npos;)
    page.erase(at, page.find('"', at + begin.size()) + 1 - at);
  return page;
}

void check_stands_alone(const std::string& whole_page) {
  const std::string page = without_images(whole_page);
  for (const char* outside : {"http:", "https:", "<script", "<link", "src=", "href=", "url(", "@import"})
    CHECK_THAT(page, !Catch::Contains(outside));
  CHECK(count(page, "<svg") == count(page, "</svg>"));
  CHECK(count(page, "<table") == count(page, "</table>"));
  CHECK_THAT(page, Catch::EndsWith("</body></html>\n") && !Catch::Contains("nan") && !Catch::Contains("inf,"));
}

TEST_CASE("a run writes a page after each epoch and at its end, with curves, times, options and environment") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp / "run");
  options.parallel.ema_decay = 0.9;
  options.parallel.clip_grad_norm = 1;
  options.program = "tiny 1.0";
  std::string during;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    if (report.step == 8) during = read_text(temp / "run/report.html");
  };
  tiny_run(options, callbacks);
  check_stands_alone(during);
  CHECK_THAT(during, Catch::Contains("there is no summary yet"));
  const std::string page = read_text(temp / "run/report.html");
  check_stands_alone(page);
  for (const char* text : {"<h1>run</h1>",
                           "Loss",
                           "Accuracy",
                           "Throughput",
                           "Learning rate",
                           "waiting for data",
                           "Gradient norm",
                           "test, EMA",
                           "replica 1 cpu",
                           "backward",
                           "clip-grad-norm",
                           "tiny 1.0",
                           "Confusion matrix",
                           "Classes, worst first",
                           "The most confident errors",
                           "activations",
                           "--profile",
                           "130 images: the accuracy is known to",
                           "prefers-color-scheme:dark",
                           "(complete)"})
    CHECK_THAT(page, Catch::Contains(text));
  CHECK_THAT(page, !Catch::Contains("there is no summary yet"));
  std::vector<std::string> captions = texts(page, "<figcaption>", "</figcaption>");
  std::erase_if(captions, [](const std::string& caption) { return caption.find("<br>") != std::string::npos; });
  CHECK(captions == std::vector<std::string>{
                        "<b>Loss</b>", "<b>Accuracy</b> <small>Acc@1, %</small>",
                        "<b>Throughput</b> <small>images/s</small>", "<b>Learning rate</b>",
                        "<b>Time spent waiting for data</b> <small>part of the time</small>", "<b>Gradient norm</b>",
                        "<b>Confusion matrix</b> <small>images of the test set</small>",
                        "<b>Time of the recorded steps</b> <small>seconds by phase, each replica</small>",
                        "<b>Memory</b> <small>MiB by purpose, each replica</small>"});
  const std::vector<std::string> legends = texts(page, "<p class=\"legend\">", "</p>");
  REQUIRE(legends.size() == captions.size());
  const std::string three = "<span> train</span><span> test</span><span> test, EMA</span>";
  CHECK(std::vector<std::string>(legends.begin(), legends.begin() + 6) ==
        std::vector<std::string>{three, three, "<span> training</span>", "<span> rate</span>", "<span> waiting</span>",
                                 "<span> before clipping</span>"});
  CHECK(texts(page, "<h2>", "</h2>") == std::vector<std::string>{"Results", "Curves", "Predictions", "Time and memory",
                                                                 "Options", "History and environment"});
  CHECK(texts(page, "<h3>", "</h3>") ==
        std::vector<std::string>{"Classes, worst first", "The most confident errors", "run"});
  std::vector<std::string> rows = texts(page, "<tr><th>", "</th>");
  rows.resize(10);
  CHECK(rows == std::vector<std::string>{"", "Acc@1 (%)", "Acc@5 (%)", "test loss", "train loss", "epochs", "steps",
                                         "images/s", "training time (s)", "end"});
}

TEST_CASE("with --profile the page and summary.json have the time of each layer") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.profile = true;
  options.parallel.trace_first = 4;
  options.parallel.trace_steps = 3;
  const RunSummary summary = tiny_run(options);
  REQUIRE_FALSE(summary.layers.empty());
  const auto layers = nlohmann::json::parse(read_text(temp / "summary.json"))["layers"];
  REQUIRE(layers.size() == summary.layers.size());
  CHECK(layers[0]["name"] == summary.layers[0].name);
  CHECK(layers[0]["seconds"] == summary.layers[0].seconds);
  const std::string page = read_text(temp / "report.html");
  check_stands_alone(page);
  CHECK_THAT(page, Catch::Contains("The slowest layers") && Catch::Contains("conv") && !Catch::Contains("--profile<"));
  const auto slowest = std::ranges::max_element(summary.layers, {}, &LayerTime::seconds);
  const std::string row =
      fmt::format("<tr><td>{}</td><td class=\"number\">{:.3f}</td>", slowest->name, 1e3 * slowest->seconds);
  CHECK_THAT(page, Catch::Contains(row));
}

TEST_CASE("env.json has the memory of each replica by purpose") {
  const TemporaryFolder temp;
  Trainer trainer(dp::test::tiny_model(), dp::test::tiny_digits(), tiny_options(temp.path()));
  trainer.run();
  const auto memory = nlohmann::json::parse(read_text(temp / "env.json"))["parts"][0]["memory"];
  const std::string page = read_text(temp / "report.html");
  REQUIRE(memory.size() == 2);
  for (int replica = 0; replica < 2; ++replica) {
    const MemoryUse use = trainer.net().memory_use(replica);
    const auto& found = memory[static_cast<std::size_t>(replica)];
    CHECK(found["weights"] == use.weights);
    std::size_t sum = 0;
    for (const auto& bytes : found) sum += bytes.get<std::size_t>();
    CHECK(sum == use.total());
    const double mebibytes = static_cast<double>(use.total()) / 1048576;
    CHECK_THAT(page, Catch::Contains(fmt::format("class=\"end\">{:.4g}</text>", mebibytes)));
  }
}

TEST_CASE("an interrupted run has its page, which says so first") {
  const TemporaryFolder temp;
  run_until(tiny_options(temp.path()), 10);
  const std::string page = read_text(temp / "report.html");
  check_stands_alone(page);
  CHECK(page.find("the run was interrupted before its end") < page.find("<h2>"));
}

TEST_CASE("several runs are laid side by side, with the options in which they differ") {
  const TemporaryFolder temp;
  for (const auto& [name, lr] : {std::pair("low", 0.01f), {"high", 0.1f}}) {
    TrainerOptions options = tiny_options(temp / name);
    options.optimizer = Sgd{.lr = lr};
    options.max_steps = 4;
    tiny_run(options);
  }
  write_report({temp / "low", temp / "high/"}, temp / "both.html");
  const std::string page = read_text(temp / "both.html");
  check_stands_alone(page);
  CHECK_THAT(page, Catch::Contains("<th>low</th><th>high</th>") && Catch::Contains("low, train"));
  const std::size_t different = page.find("Different"), same = page.find("The same");
  REQUIRE(different < same);
  CHECK_THAT(page.substr(different, same - different), Catch::Contains("<th>lr</th>") && !Catch::Contains("momentum"));
  // Curves of one run have one colour: the legend shows which one is dashed.
  CHECK_THAT(page,
             Catch::Contains("<polyline class=\"l0\" points=\"0,6 24,6\"/></svg> low, train") &&
                 Catch::Contains("<polyline class=\"l1 dashed\" points=\"0,6 24,6\"/><circle class=\"c1\" cx=\"12\" "
                                 "cy=\"6\" r=\"3\"/></svg> high, test"));
  CHECK_THAT(page, !Catch::Contains("l0 dotted"));  // of a moving average
  for (const char* run : {"low", "high"})
    CHECK_THAT(page, Catch::Contains("<summary>Classes and errors of " + std::string(run)));
}

TEST_CASE("the time spent waiting for data is the sum over all recorded intervals") {
  const TemporaryFolder temp;
  write_text(temp / "metrics.jsonl",
             "{\"kind\":\"train\",\"step\":1,\"loading_share\":0.5,\"seconds_train\":2}\n"
             "{\"kind\":\"train\",\"step\":9,\"loading_share\":0.25,\"seconds_train\":6}\n");
  CHECK(read_run(temp.path()).loading_seconds() == 2);
}

TEST_CASE("the axis of a constant curve begins at 0 and names values of its size") {
  const std::string chart = line_chart("Rate", "", {{"rate", {{1, 0.05}, {2, 0.05}, {3, 0.05}}}});
  for (const char* tick : {">0<", ">0.02<", ">0.04<", ">0.06<"}) CHECK_THAT(chart, Catch::Contains(tick));
  CHECK_THAT(chart, !Catch::Contains(">-"));
  CHECK_THAT(line_chart("Waiting", "", {{"", {{1, 0}, {2, 0}}}}), Catch::Contains(">0.8<") && !Catch::Contains("nan"));
  CHECK_THAT(line_chart("Loss", "", {{"", {{1, -2}, {2, -2}}}}), Catch::Contains(">-2<") && Catch::Contains(">0<"));
}

TEST_CASE("the history shows an option that was not set before as none, without quotes") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  run_until(options, 2);
  options.resume = "auto";
  options.parallel.clip_grad_norm = 2;
  options.max_steps = 4;
  tiny_run(options);
  CHECK_THAT(read_text(temp / "report.html"), Catch::Contains("resumed at step 2") &&
                                                  Catch::Contains(", clip-grad-norm none -&gt; 2") &&
                                                  !Catch::Contains("null"));
}

TEST_CASE("texts of a run cannot become markup of its page") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp / "<b>&");
  options.dataset_name = "<script>alert(1)</script>";
  options.program = "\"><img onerror=x>";
  options.max_steps = 1;
  tiny_run(options);
  const std::string page = read_text(temp / "<b>&/report.html");
  check_stands_alone(page);
  CHECK_THAT(page, !Catch::Contains("<img") && !Catch::Contains("<b>&<") && Catch::Contains("&lt;script&gt;"));
}

TEST_CASE("a page is made of what can be read, and a folder without a run is refused") {
  const TemporaryFolder temp;
  expect_error(ErrorCode::data, {temp.path(), "metrics.jsonl"},
               [&] { write_report({temp.path()}, temp / "out.html"); });
  CHECK_FALSE(std::filesystem::exists(temp / "out.html"));
  for (const char* metrics :
       {"", "garbage\n{\"kind\":7}\n[]\n", "{\"kind\":\"train\",\"step\":1,\"loss\":null,\"phases\":7}\n",
        "{\"kind\":\"train\",\"step\":\"x\",\"loss\":1,\"phases\":[{\"forward\":\"y\"}]}\n{\"kind\":\"eval\",\"step\":"
        "1}\n"}) {
    write_text(temp / "metrics.jsonl", metrics);
    write_text(temp / "env.json",
               "{\"parts\":[{\"command\":[1,2],\"data\":{\"test_images\":-1},\"memory\":[7,{\"weights\":\"x\"}]},5]}");
    write_text(temp / "summary.json",
               "{\"top1\":\"x\",\"interrupted\":\"yes\",\"end\":[4],\"layers\":[3,{\"name\":5,\"seconds\":\"y\"}]}");
    write_report({temp.path()}, temp / "out.html");
    check_stands_alone(read_text(temp / "out.html"));
  }
  expect_error(ErrorCode::io, {"none"}, [&] { write_report({temp.path()}, temp / "none/out.html"); });
}

TEST_CASE("a line chart and a bar chart are drawn exactly like this") {
  CHECK(line_chart("A title", "a unit",
                   {{"first", {{0, 1}, {5, 3}, {10, 2}}, 0},
                    {"second <", {{0, -1}, {10, 4}}, 1, true, " dashed"},
                    {"none", {}, 2}}) ==
        R"(<figure><figcaption><b>A title</b> <small>a unit</small></figcaption>)"
        R"(<svg viewBox="0 0 360 200" role="img" aria-label="A title">)"
        R"(<path class="grid" d="M46.0 178.0H352.0"/><text x="42.0" y="182.0" class="end">-1</text>)"
        R"(<path class="grid" d="M46.0 144.0H352.0"/><text x="42.0" y="148.0" class="end">0</text>)"
        R"(<path class="grid" d="M46.0 110.0H352.0"/><text x="42.0" y="114.0" class="end">1</text>)"
        R"(<path class="grid" d="M46.0 76.0H352.0"/><text x="42.0" y="80.0" class="end">2</text>)"
        R"(<path class="grid" d="M46.0 42.0H352.0"/><text x="42.0" y="46.0" class="end">3</text>)"
        R"(<path class="grid" d="M46.0 8.0H352.0"/><text x="42.0" y="12.0" class="end">4</text>)"
        R"(<text x="46.0" y="194.0" class="middle">0</text><text x="107.2" y="194.0" class="middle">2</text>)"
        R"(<text x="168.4" y="194.0" class="middle">4</text><text x="229.6" y="194.0" class="middle">6</text>)"
        R"(<text x="290.8" y="194.0" class="middle">8</text><text x="360.0" y="194.0" class="end">10</text>)"
        R"(<polyline class="l0" points="46.0,110.0 199.0,42.0 352.0,76.0 "/>)"
        R"(<polyline class="l1 dashed" points="46.0,178.0 352.0,8.0 "/>)"
        R"(<circle class="c1" cx="46.0" cy="178.0" r="3"><title>step 0: -1</title></circle>)"
        R"(<circle class="c1" cx="352.0" cy="8.0" r="3"><title>step 10: 4</title></circle></svg>)"
        R"(<p class="legend"><span><svg class="line" viewBox="0 0 24 12">)"
        R"(<polyline class="l0" points="0,6 24,6"/></svg> first</span><span>)"
        R"(<svg class="line" viewBox="0 0 24 12"><polyline class="l1 dashed" points="0,6 24,6"/>)"
        R"(<circle class="c1" cx="12" cy="6" r="3"/></svg> second &lt;</span></p></figure>)"
        "\n");
  CHECK(bar_chart("Times", "s", {{"a", {{"x", 1.0}, {"y", 3.0}}}, {"b & c", {{"x", 0.0}, {"z", 1.5}}}}) ==
        R"(<figure><figcaption><b>Times</b> <small>s</small></figcaption>)"
        R"(<svg viewBox="0 0 360 72" role="img" aria-label="Times">)"
        R"(<rect class="c0" x="0.0" y="16.0" width="90.0" height="14"><title>x: 1</title></rect>)"
        R"(<rect class="c1" x="90.0" y="16.0" width="270.0" height="14"><title>y: 3</title></rect>)"
        R"(<text x="0" y="12.0">a</text><text x="360" y="12.0" class="end">4</text>)"
        R"(<rect class="c2" x="0.0" y="50.0" width="135.0" height="14"><title>z: 1.5</title></rect>)"
        R"(<text x="0" y="46.0">b &amp; c</text><text x="360" y="46.0" class="end">1.5</text></svg>)"
        R"(<p class="legend"><span><svg viewBox="0 0 12 12"><rect class="c0" width="12" height="12"/></svg> x)"
        R"(</span><span><svg viewBox="0 0 12 12"><rect class="c1" width="12" height="12"/></svg> y</span><span>)"
        R"(<svg viewBox="0 0 12 12"><rect class="c2" width="12" height="12"/></svg> z</span></p></figure>)"
        "\n");
}

TEST_CASE("a chart has round ticks, and draws one point, equal values and long curves") {
  CHECK(line_chart("Empty", "", {{"a", {}}}).empty());
  const std::string one = line_chart("One", "", {{"a", {{3, 7}}}});
  CHECK_THAT(one, Catch::Contains("<circle") && !Catch::Contains("nan"));
  CHECK_THAT(line_chart("Equal", "", {{"a", {{0, 5}, {1, 5}, {2, 5}}}}), Catch::Contains("polyline"));
  CHECK_THAT(line_chart("Large", "", {{"a", {{0, 5e15}, {1, 5e15}}}}), Catch::Contains("polyline"));
  Curve wave;
  for (int i = 0; i <= 10000; ++i) wave.push_back({static_cast<double>(i), std::sin(i * 0.01)});
  const std::string chart = line_chart("Wave", "", {{"a", wave}});
  CHECK(chart.size() < 8000);
  for (const char* tick : {">-0.5<", ">0<", ">0.5<", ">2000<", ">10k<"}) CHECK_THAT(chart, Catch::Contains(tick));
  CHECK(bar_chart("None", "", {{"a", {{"x", 0.0}}}}).empty());
  CHECK_THAT(bar_chart("Two", "s", {{"a", {{"x", 1.0}, {"y", 3.0}}}}),
             Catch::Contains(">4<") && Catch::Contains("width=\"270.0\""));
}

}  // namespace
