// report.html of folders written by hand: each section exactly.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "dp/report.h"
#include "engine/train/report/chart.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp;
using dp::test::read_text;
using dp::test::TemporaryFolder;
using dp::test::write_text;

// Files of a run's folder; an empty text: none.
struct Files {
  std::string metrics, summary, environment, config;
};

void write_run(const TemporaryFolder& temp, const std::string& name, const Files& files) {
  const std::string folder = temp / name;
  std::filesystem::create_directories(folder);
  write_text(folder + "/metrics.jsonl", files.metrics);
  if (!files.summary.empty()) write_text(folder + "/summary.json", files.summary);
  if (!files.environment.empty()) write_text(folder + "/env.json", files.environment);
  if (!files.config.empty()) write_text(folder + "/config.toml", files.config);
}

std::string page_of(const TemporaryFolder& temp, const std::vector<std::string>& names) {
  std::vector<std::string> folders;
  for (const std::string& name : names) folders.push_back(temp / name);
  write_report(folders, temp / "page.html");
  return read_text(temp / "page.html");
}

std::string page_of(const Files& files) {
  const TemporaryFolder temp;
  write_run(temp, "run", files);
  return page_of(temp, {"run"});
}

// From `begin` up to `end`.
std::string between(const std::string& page, const std::string& begin, const std::string& end) {
  const std::size_t from = page.find(begin);
  return from == std::string::npos ? "" : page.substr(from, page.find(end, from) - from);
}

std::string results_of(const std::string& page) { return between(page, "<h2>Results</h2>", "<h2>Curves</h2>"); }
std::string warnings_of(const std::string& page) { return between(page, "</h1>", "<h2>Results</h2>"); }

std::string evaluation(double top1, bool average = false) {
  return nlohmann::json{{"kind", "eval"}, {"step", 7},    {"loss", average ? 0.125 : 0.25},
                        {"top1", top1},   {"top5", 99.5}, {"average", average}}
             .dump() +
         "\n";
}

// A training line with this field.
std::string training(std::int64_t step, const char* field, double value) {
  return nlohmann::json{{"kind", "train"}, {"step", step}, {field, value}}.dump() + "\n";
}

std::string with_images(std::int64_t images) {
  return R"({"parts":[{"data":{"test_images":)" + std::to_string(images) + "}}]}";
}

TEST_CASE("the table of results has the summary, the last evaluation and the margin of its accuracy") {
  const std::string summary =
      R"({"train_loss":0.123456,"epochs":3,"steps":21,"images_per_second":1234.4,"seconds_train":56.78,)"
      R"("end":"complete"})";
  CHECK(results_of(page_of({evaluation(10) + evaluation(90), summary, with_images(100), ""})) ==
        "<h2>Results</h2>\n<div class=\"wide\"><table><tr><th></th><th>run</th></tr>\n"
        "<tr><th>Acc@1 (%)</th><td class=\"number\">90.00 ±5.88</td></tr>\n"
        "<tr><th>Acc@5 (%)</th><td class=\"number\">99.50</td></tr>\n"
        "<tr><th>test loss</th><td class=\"number\">0.25</td></tr>\n"
        "<tr><th>train loss</th><td class=\"number\">0.1235</td></tr>\n"
        "<tr><th>epochs</th><td class=\"number\">3</td></tr>\n"
        "<tr><th>steps</th><td class=\"number\">21</td></tr>\n"
        "<tr><th>images/s</th><td class=\"number\">1234</td></tr>\n"
        "<tr><th>training time (s)</th><td class=\"number\">56.8</td></tr>\n"
        "<tr><th>end</th><td>complete</td></tr>\n</table></div>\n");
}

TEST_CASE("without a summary the results are those of the last lines, and with an average its own") {
  const std::string line =
      R"({"kind":"train","epoch":1,"step":9,"loss":1.5,"images_per_second":50,"seconds_train":2.5})"
      "\n";
  const std::string rows =
      "<tr><th>Acc@1 (%)</th><td class=\"number\">80.00</td></tr>\n"
      "<tr><th>Acc@5 (%)</th><td class=\"number\">99.50</td></tr>\n"
      "<tr><th>test loss</th><td class=\"number\">0.125</td></tr>\n";
  const std::string evaluations = evaluation(80, true) + evaluation(90);
  CHECK(results_of(page_of({line + evaluations, "", "", ""})) ==
        "<h2>Results</h2>\n<div class=\"wide\"><table><tr><th></th><th>run</th></tr>\n" + rows +
            "<tr><th>train loss</th><td class=\"number\">1.5</td></tr>\n"
            "<tr><th>epochs</th><td class=\"number\">-</td></tr>\n"
            "<tr><th>steps</th><td class=\"number\">9</td></tr>\n"
            "<tr><th>images/s</th><td class=\"number\">-</td></tr>\n"
            "<tr><th>training time (s)</th><td class=\"number\">2.5</td></tr>\n"
            "<tr><th>end</th><td>-</td></tr>\n</table></div>\n");
  const std::string nulls = results_of(page_of({line + evaluations, R"({"train_loss":null})", "", ""}));
  for (const char* row : {"train loss", "steps", "training time (s)"})
    CHECK_THAT(nulls, Catch::Contains("<th>" + std::string(row) + "</th><td class=\"number\">-</td>"));
}

TEST_CASE("a page warns about a missing summary, an interruption and skipped steps") {
  const std::string few = "<li>only 0 measurements of throughput</li>";
  CHECK(warnings_of(page_of({"", "", "", ""})) ==
        "</h1>\n<ul class=\"warn\"><li>there is no summary yet: the run is active, or has failed</li>" + few +
            "</ul>\n");
  CHECK(warnings_of(page_of({"", R"({"interrupted":true})", "", ""})) ==
        "</h1>\n<ul class=\"warn\"><li>the run was interrupted before its end</li>" + few + "</ul>\n");
  const std::string skipping = training(1, "skipped", 0) + R"({"kind":"train","step":2,"skipped":2})" + "\n" +
                               R"({"kind":"train","step":3,"skipped":3})" + "\n";
  CHECK(warnings_of(page_of({skipping, R"({"interrupted":false})", "", ""})) ==
        "</h1>\n<ul class=\"warn\">" + few + "<li>5 steps were skipped: a loss or gradient was not finite</li></ul>\n");
}

std::string throughputs(const std::vector<int>& rates) {
  std::string lines;
  std::int64_t step = 0;
  for (const int rate : rates) lines += training(++step, "images_per_second", rate);
  return lines;
}

TEST_CASE("a page warns about few or varying measurements of throughput") {
  const auto warned = [](const std::vector<int>& rates) {
    return warnings_of(page_of({throughputs(rates), "{}", "", ""}));
  };
  CHECK(warned({9, 8, 7, 6, 5, 4, 3, 2, 1}) ==
        "</h1>\n<ul class=\"warn\"><li>only 9 measurements of throughput</li></ul>\n");
  // Sorted, the middle half is from 30 to 80, and the median is 60.
  CHECK(warned({100, 10, 90, 20, 80, 30, 70, 40, 60, 50}) ==
        "</h1>\n<ul class=\"warn\"><li>throughput varied: the middle half of its measurements spans 83 % of the "
        "median</li></ul>\n");
  CHECK(warned({10, 10, 90, 90, 100, 100, 100, 110, 900, 900}) == "</h1>\n");
  CHECK_THAT(warned({10, 10, 89, 90, 100, 100, 100, 110, 900, 900}), Catch::Contains("spans 21 % of the median"));
}

TEST_CASE("a page warns about waiting for data and about a small test set") {
  const std::string steady = throughputs(std::vector<int>(10, 100));
  const auto warned = [&](const std::string& lines, std::int64_t images) {
    return warnings_of(page_of({steady + lines, "{}", with_images(images), ""}));
  };
  const std::string subtitle = "</h1>\n<p class=\"soft\"> on , </p>\n";
  CHECK(warned(training(1, "loading_share", 0.1), 0) == subtitle);
  CHECK(warned(
            training(1, "loading_share", 0.5) + training(2, "loading_share", 0.25) + training(3, "loading_share", 0.25),
            0) ==
        subtitle +
            "<ul class=\"warn\"><li>training spent 33 % of the time waiting for data; raise --workers</li></ul>\n");
  CHECK(warned(evaluation(50), 39'000) == subtitle);
  CHECK(warned(evaluation(50), 38'000) ==
        subtitle +
            "<ul class=\"warn\"><li>the test set has 38000 images: the accuracy is known to ±0.5 percentage points "
            "only</li></ul>\n");
}

TEST_CASE("the title, the subtitle, the options and the history come from the files of the folder") {
  const TemporaryFolder temp;
  write_run(temp, "run",
            {R"({"kind":"resumed","step":7,"changes":[7,{"option":5},)"
             R"({"option":"lr","before":0.1,"now":0.05},{"option":"amp","before":null,"now":"a<b"}]})"
             "\n",
             "{}",
             R"({"parts":[{"started":"S1","ended":"E1","end":"interrupted","program":"dp 1","host":"h1",)"
             R"("command":["dp_train","-x",7],"environment":["cpu A","lib B"]},)"
             R"({"started":"S2","devices":["cpu","gpu"]}]})",
             "# lr = 5\nmodel = \"tiny\"\ndataset = \"digits\"\nlr = 0.1\n\"\n\n[resolved]\nworkers = 3\n"});
  const std::string page = page_of(temp, {"run"});
  CHECK_THAT(page,
             Catch::StartsWith("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">") &&
                 Catch::Contains("\n<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                                 "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'\">"
                                 "\n<title>run</title>\n<style>\n:root{") &&
                 Catch::Contains(".c0{fill:var(--s0)}.l0{stroke:var(--s0)}.c1{fill:var(--s1)}") &&
                 Catch::Contains(".c7{fill:var(--s7)}.l7{stroke:var(--s7)}</style></head>\n<body>\n<h1>run</h1>"));
  CHECK_THAT(warnings_of(page), Catch::StartsWith("</h1>\n<p class=\"soft\">tiny on digits, cpu, gpu</p>\n"));
  CHECK(between(page, "<h2>Options</h2>", "</body>") ==
        "<h2>Options</h2>\n<div class=\"wide\"><table><tr><th>model</th><td>tiny</td></tr>\n"
        "<tr><th>dataset</th><td>digits</td></tr>\n<tr><th>lr</th><td>0.1</td></tr>\n</table></div>\n"
        "<h2>History and environment</h2>\n<h3>run</h3>\n<pre>"
        "started S1, ended E1 (interrupted)\ndp 1 on h1\ndp_train -x\ncpu A\nlib B\n\n"
        "started S2, no end recorded: it is active, or was killed\n- on -\n\n\n\n"
        "resumed at step 7, lr 0.1 -&gt; 0.05, amp none -&gt; a&lt;b\n</pre>\n");
}

TEST_CASE("the options are those of the config file with the highest number in a row") {
  const TemporaryFolder temp;
  write_run(temp, "run", {"", "{}", "", "lr = 1\n"});
  const auto shown = [&] { return between(page_of(temp, {"run"}), "<h2>Options</h2>", "<h2>History"); };
  const auto wanted = [](const std::string& lr) {
    return "<h2>Options</h2>\n<div class=\"wide\"><table><tr><th>lr</th><td>" + lr + "</td></tr>\n</table></div>\n";
  };
  CHECK(shown() == wanted("1"));
  write_text(temp / "run/config.2.toml", "lr = 2\n");
  CHECK(shown() == wanted("2"));
  write_text(temp / "run/config.3.toml", "lr = 3\n");
  write_text(temp / "run/config.5.toml", "lr = 5\n");
  CHECK(shown() == wanted("3"));
}

TEST_CASE("the tables of several runs have a column for each, and warnings name their run") {
  const TemporaryFolder temp;
  write_run(temp, "a", {evaluation(50), R"({"steps":1,"end":"x"})", "", "lr = 1\nseed = 7\nonly = true\n"});
  write_run(temp, "b<", {evaluation(60), R"({"steps":2})", "", "lr = 2\nseed = 7\n"});
  const std::string page = page_of(temp, {"a", "b<"});
  CHECK_THAT(page, Catch::Contains("<title>a, b&lt;</title>") && Catch::Contains("<h1>a, b&lt;</h1>\n<ul class"));
  CHECK(warnings_of(page) ==
        "</h1>\n<ul class=\"warn\"><li><b>a</b>: only 0 measurements of throughput</li>"
        "<li><b>b&lt;</b>: only 0 measurements of throughput</li></ul>\n");
  CHECK_THAT(results_of(page),
             Catch::Contains("<tr><th></th><th>a</th><th>b&lt;</th></tr>\n"
                             "<tr><th>Acc@1 (%)</th><td class=\"number\">50.00</td><td class=\"number\">60.00</td>") &&
                 Catch::Contains("<tr><th>steps</th><td class=\"number\">1</td><td class=\"number\">2</td></tr>\n") &&
                 Catch::Contains("<tr><th>end</th><td>x</td><td>-</td></tr>\n"));
  CHECK(between(page, "<h2>Options</h2>", "<h2>History") ==
        "<h2>Options</h2>\n<h3>Different</h3>\n"
        "<div class=\"wide\"><table><tr><th></th><th>a</th><th>b&lt;</th></tr>\n"
        "<tr><th>lr</th><td>1</td><td>2</td></tr>\n<tr><th>only</th><td>true</td><td></td></tr>\n</table></div>\n"
        "<h3>The same</h3>\n<div class=\"wide\"><table><tr><th>seed</th><td>7</td></tr>\n</table></div>\n");
  CHECK_THAT(page, Catch::Contains("<h3>a</h3>\n<pre></pre>\n<h3>b&lt;</h3>\n<pre></pre>\n</body></html>\n"));
  CHECK_THAT(page, !Catch::Contains("<p class=\"soft\"> on "));
}

TEST_CASE("each chart has the curves of its field, in the colours and dashes of one run or of several") {
  const TemporaryFolder temp;
  std::string lines;
  for (const int step : {1, 2})
    lines += nlohmann::json{{"kind", "train"},        {"step", step},         {"loss", 1.5 * step},
                            {"top1", 10 + step},      {"lr", 0.5 * step},     {"images_per_second", 100 * step},
                            {"loading_share", 0.125}, {"grad_norm", 4 * step}}
                 .dump() +
             "\n";
  lines += evaluation(50) + evaluation(70, true);
  write_run(temp, "a", {lines, "{}", "", ""});
  write_run(temp, "b", {lines, "{}", "", ""});
  const Curve loss{{1, 1.5}, {2, 3}}, top1{{1, 11}, {2, 12}}, speed{{1, 100}, {2, 200}}, rate{{1, 0.5}, {2, 1}},
      waiting{{1, 0.125}, {2, 0.125}}, norm{{1, 4}, {2, 8}};
  const Curve test_loss{{7, 0.25}}, average_loss{{7, 0.125}}, test{{7, 50}}, average{{7, 70}};
  CHECK(between(page_of(temp, {"a"}), "<h2>Curves</h2>", "<p class=\"soft\"><code>--profile") ==
        "<h2>Curves</h2>\n<p class=\"soft\">Over optimizer steps.</p>\n<div class=\"charts\">\n" +
            line_chart("Loss", "",
                       {{"train", loss, 0}, {"test", test_loss, 1, true}, {"test, EMA", average_loss, 2, true}}) +
            line_chart("Accuracy", "Acc@1, %",
                       {{"train", top1, 0}, {"test", test, 1, true}, {"test, EMA", average, 2, true}}) +
            line_chart("Throughput", "images/s", {{"training", speed, 0}}) +
            line_chart("Learning rate", "", {{"rate", rate, 0}}) +
            line_chart("Time spent waiting for data", "part of the time", {{"waiting", waiting, 0}}) +
            line_chart("Gradient norm", "", {{"before clipping", norm, 0}}) + "</div>\n" +
            "<p class=\"soft\">There is no confusion matrix: a run records one for up to 100 classes.</p>\n");
  const std::string both = page_of(temp, {"a", "b"});
  CHECK_THAT(both, Catch::Contains(line_chart("Loss", "",
                                              {{"a, train", loss, 0},
                                               {"a, test", test_loss, 0, true, " dashed"},
                                               {"a, test, EMA", average_loss, 0, true, " dotted"},
                                               {"b, train", loss, 1},
                                               {"b, test", test_loss, 1, true, " dashed"},
                                               {"b, test, EMA", average_loss, 1, true, " dotted"}})) &&
                       Catch::Contains(line_chart("Throughput", "images/s", {{"a", speed, 0}, {"b", speed, 1}})));
  CHECK_THAT(both, !Catch::Contains("--profile"));
}

}  // namespace
