// report.html of folders written by hand: its data, its text, and that no input breaks it. tests/bench looks at the
// drawn page.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "dp/report.h"
#include "engine/base/sha256.h"
#include "engine/base/text.h"
#include "engine/train/report/page.h"
#include "support/catch.h"
#include "support/temporary_folder.h"
#include "train/expect_error.h"
#include "train/report/page_data.h"

namespace {

using namespace dp;
using dp::test::expect_error;
using dp::test::page_data;
using dp::test::read_text;
using dp::test::TemporaryFolder;
using dp::test::write_text;
using Json = nlohmann::ordered_json;
using Texts = std::vector<std::string>;

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

// The data of the only run.
Json run_of(const Files& files) {
  const TemporaryFolder temp;
  write_run(temp, "run", files);
  return page_data(page_of(temp, {"run"})).at("runs").at(0);
}

Texts warnings_of(const Files& files) { return run_of(files).at("warnings"); }

std::string eval_line(double top1, bool average = false) {
  return Json{{"kind", "eval"}, {"step", 7},    {"loss", average ? 0.125 : 0.25},
              {"top1", top1},   {"top5", 99.5}, {"average", average}}
             .dump() +
         "\n";
}

// A training line with this field.
std::string train_line(std::int64_t step, const char* field, double value) {
  return Json{{"kind", "train"}, {"step", step}, {field, value}}.dump() + "\n";
}

std::string with_images(std::int64_t images) {
  return R"({"parts":[{"data":{"test_images":)" + std::to_string(images) + "}}]}";
}

TEST_CASE("the results have the summary, the last evaluation and the margin of its accuracy") {
  const std::string summary =
      R"({"train_loss":0.123456,"epochs":3,"steps":21,"images_per_second":1234.4,"seconds_train":56.78,)"
      R"("end":"complete"})";
  CHECK(run_of({eval_line(10) + eval_line(90), summary, with_images(100), ""}).at("results") ==
        Json{{"Acc@1 (%)", "90.00 ±5.88"},
             {"Acc@5 (%)", "99.50"},
             {"test loss", "0.25"},
             {"train loss", "0.1235"},
             {"epochs", "3"},
             {"steps", "21"},
             {"images/s", "1234"},
             {"training time (s)", "56.8"},
             {"end", "complete"}});
}

TEST_CASE("with targets the results have the metrics of the last evaluation in place of accuracies") {
  const std::string lines = R"({"kind":"eval","step":9,"loss":0.5,"mae":1.5,"rmse":2.25,"r2":0.75})"
                            "\n"
                            R"({"kind":"eval","step":18,"loss":0.25,"mae":1,"rmse":1.5,"r2":0.875})"
                            "\n";
  const Json results = run_of({lines, "", "", ""}).at("results");
  CHECK(results.at("MAE") == "1");
  CHECK(results.at("RMSE") == "1.5");
  CHECK(results.at("R2") == "0.875");
  CHECK(results.at("test loss") == "0.25");
  CHECK(results.begin().key() == "MAE");
  CHECK_FALSE(results.contains("Acc@1 (%)"));
  CHECK_FALSE(results.contains("mAP"));
}

TEST_CASE("without a summary the results are those of the last lines, and with an average its own") {
  const std::string line =
      R"({"kind":"train","epoch":1,"step":9,"loss":1.5,"images_per_second":50,"seconds_train":2.5})"
      "\n";
  const std::string lines = line + eval_line(80, true) + eval_line(90);
  CHECK(run_of({lines, "", "", ""}).at("results") == Json{{"Acc@1 (%)", "80.00"},
                                                          {"Acc@5 (%)", "99.50"},
                                                          {"test loss", "0.125"},
                                                          {"train loss", "1.5"},
                                                          {"epochs", "-"},
                                                          {"steps", "9"},
                                                          {"images/s", "-"},
                                                          {"training time (s)", "2.5"},
                                                          {"end", "-"}});
  const Json nulls = run_of({lines, R"({"train_loss":null})", "", ""}).at("results");
  for (const char* name : {"train loss", "steps", "training time (s)"}) CHECK(nulls.at(name) == "-");
}

TEST_CASE("a page warns about a missing summary, an interruption, an error and skipped steps") {
  const std::string few = "only 0 measurements of throughput";
  CHECK(warnings_of({"", "", "", ""}) == Texts{"there is no summary yet: the run is active, or has failed", few});
  CHECK(warnings_of({"", R"({"interrupted":true})", "", ""}) == Texts{"the run was interrupted before its end", few});
  CHECK(warnings_of({"", R"({"interrupted":true,"end":"error: no room"})", "", ""}) ==
        Texts{"the run was ended by an error: no room", few});
  const std::string skipping = train_line(1, "skipped", 0) + R"({"kind":"train","step":2,"skipped":2})" + "\n" +
                               R"({"kind":"train","step":3,"skipped":3})" + "\n";
  CHECK(warnings_of({skipping, R"({"interrupted":false})", "", ""}) ==
        Texts{few, "5 steps were skipped: a loss or gradient was not finite"});
}

std::string throughputs(const std::vector<int>& rates) {
  std::string lines;
  std::int64_t step = 0;
  for (const int rate : rates) lines += train_line(++step, "images_per_second", rate);
  return lines;
}

TEST_CASE("a page warns about few or varying measurements of throughput") {
  const auto warned = [](const std::vector<int>& rates) { return warnings_of({throughputs(rates), "{}", "", ""}); };
  CHECK(warned({9, 8, 7, 6, 5, 4, 3, 2, 1}) == Texts{"only 9 measurements of throughput"});
  // Sorted, the middle half is from 30 to 80, and the median is 60.
  CHECK(warned({100, 10, 90, 20, 80, 30, 70, 40, 60, 50}) ==
        Texts{"throughput varied: the middle half of its measurements spans 83 % of the median"});
  CHECK(warned({10, 10, 90, 90, 100, 100, 100, 110, 900, 900}).empty());
  CHECK(warned({10, 10, 89, 90, 100, 100, 100, 110, 900, 900}).size() == 1);
}

TEST_CASE("a page warns about waiting for data and about a small test set") {
  const std::string steady = throughputs(std::vector<int>(10, 100));
  const auto warned = [&](const std::string& lines, std::int64_t images) {
    return warnings_of({steady + lines, "{}", with_images(images), ""});
  };
  CHECK(warned(train_line(1, "loading_share", 0.1), 0).empty());
  CHECK(warned(train_line(1, "loading_share", 0.5) + train_line(2, "loading_share", 0.25) +
                   train_line(3, "loading_share", 0.25),
               0) == Texts{"training spent 33 % of the time waiting for data; raise --workers"});
  CHECK(warned(eval_line(50), 39'000).empty());
  CHECK(warned(eval_line(50), 38'000) ==
        Texts{"the test set has 38000 images: the accuracy is known to ±0.5 percentage points only"});
}

TEST_CASE("a page has the records of the folder as they are, and the latest config file") {
  const TemporaryFolder temp;
  const Json summary{{"end", "complete"}, {"layers", {{{"name", "fc"}, {"seconds", 0.5}}}}};
  const Json env{{"parts", {{{"started", "S"}, {"command", {"dp_train", "-x"}}, {"memory", {{{"weights", 7}}}}}}}};
  const Json found{{"step", 1}, {"confusion", {{1, 0}, {0, 1}}}};
  const Json line{{"kind", "train"}, {"step", 1}, {"loss", 4.5}, {"note", "x"}};
  const Json resumed{{"kind", "resumed"}, {"step", 1}, {"changes", {{{"option", "lr"}, {"before", nullptr}}}}};
  write_run(temp, "run",
            {line.dump() + "\nbroken\n" + eval_line(5) + resumed.dump() + "\n" + eval_line(6, true) + "[]\n7\n" +
                 R"({"kind":"train","step":3.5,"loss":2})" + "\n" + R"({"kind":"other","step":3})" + "\n",
             summary.dump(), env.dump(), "lr = 1\n"});
  write_text(temp / "run/predictions.json", found.dump());
  for (const auto& [number, text] : {std::pair(2, "lr = 2\n"), {3, "lr = 3\n[x]\n"}, {5, "lr = 5\n"}})
    write_text(temp / fmt::format("run/config.{}.toml", number), text);
  const std::string page = page_of(temp, {"run/."});
  const Json run = page_data(page).at("runs").at(0);
  CHECK(run.at("name") == "run");
  CHECK(run.at("summary") == summary);
  CHECK(run.at("env") == env);
  CHECK(run.at("predictions") == found);
  CHECK(run.at("config") == "lr = 3\n[x]\n");
  CHECK(run.at("metrics") == Json{line, Json::parse(eval_line(5)), Json::parse(eval_line(6, true)), resumed});
  for (const char* file : {"summary.json", "env.json", "predictions.json", "config.toml", "config.2.toml"})
    std::filesystem::remove(temp / ("run/" + std::string(file)));
  const Json without = page_data(page_of(temp, {"run"})).at("runs").at(0);
  for (const char* name : {"summary", "env", "predictions"}) CHECK(without.at(name).is_null());
  CHECK(without.at("config") == "");
}

TEST_CASE("the phases of each replica are added, and the time for data is not part of waiting") {
  const std::string lines =
      R"({"kind":"train","step":1,"seconds_train":2,"loading_share":0.25,)"
      R"("phases":[{"forward":1,"waiting":3,"note":"x"},{"waiting":1}]})"
      "\n"
      R"({"kind":"train","step":3,"seconds_train":4,"loading_share":0.5,"phases":[{"update":5,"waiting":1},{"forward":7},5]})"
      "\n"
      R"({"kind":"train","step":4,"phases":null})"
      "\n";
  const Json run = run_of({lines, "", "", ""});
  CHECK(run.at("phases") == Json{{{"forward", 1.0}, {"waiting", 2.5}, {"update", 5.0}, {"data loading", 1.5}},
                                 {{"waiting", 0.0}, {"forward", 7.0}, {"data loading", 1.5}},
                                 {{"data loading", 1.5}}});
  for (const Json& line : run.at("metrics")) CHECK_FALSE(line.contains("phases"));
  // Only intervals of known length count.
  const std::string gaps = train_line(1, "loading_share", 1) + train_line(2, "seconds_train", 5) +
                           R"({"kind":"train","step":3,"seconds_train":3,"loading_share":1,"phases":[{}]})" + "\n" +
                           R"({"kind":"train","step":4,"seconds_train":7,"loading_share":0.25})" + "\n";
  CHECK(run_of({gaps, "", "", ""}).at("phases") == Json{{{"data loading", 1.0}}});
}

TEST_CASE("of a long run a page has 300 lines with the means of as many parts, and results of all lines") {
  const auto page = [](std::int64_t count) {
    std::string lines;
    for (std::int64_t i = 0; i < count; ++i)
      lines += Json{{"kind", "train"}, {"step", i}, {"loss", i}, {"phases", {{{"forward", 1}}}}}.dump() + "\n";
    return run_of({lines, "", "", ""});
  };
  CHECK(page(300).at("metrics").size() == 300);
  const Json longer = page(301), much_longer = page(6000);
  REQUIRE(longer.at("metrics").size() == 300);
  CHECK(longer.at("metrics").front() == Json{{"kind", "train"}, {"step", 0}, {"loss", 0}});
  CHECK(longer.at("metrics").back() == Json{{"kind", "train"}, {"step", 299.5}, {"loss", 299.5}});
  REQUIRE(much_longer.at("metrics").size() == 300);
  CHECK(much_longer.at("metrics").front().at("loss") == 9.5);
  CHECK(much_longer.at("results").at("train loss") == "5999");
  CHECK(much_longer.at("phases").at(0).at("forward") == 6000);
  CHECK(much_longer.dump().size() < 40'000);
}

TEST_CASE("records that are large, nested deeply or no objects are left out, and the rest of the run is read") {
  const TemporaryFolder temp;
  const std::string deep = std::string(300'000, '[') + std::string(300'000, ']');
  write_run(temp, "run",
            {eval_line(10) + R"({"kind":"eval","step":1,"top1":20,"x":)" + deep + "}\n" +
                 R"({"kind":"resumed","step":1,"changes":)" + deep + "}\n" + eval_line(30),
             R"({"end":"complete","x":)" + deep + "}", R"({"parts":)" + deep + "}", ""});
  write_text(temp / "run/predictions.json", R"({"step":1})" + std::string(std::size_t{16} << 20, ' '));
  const Json run = page_data(page_of(temp, {"run"})).at("runs").at(0);
  CHECK(run.at("metrics").size() == 2);
  for (const char* name : {"summary", "env", "predictions"}) CHECK(run.at(name).is_null());
  for (const char* text : {"", "7", "[{}]", "{", "null"}) CHECK(run_of({"", text, text, ""}).at("env").is_null());
  const std::string odd = R"({"parts":[{"command":[1,2],"data":{"test_images":-1},"memory":[7,{"weights":"x"}]},5]})";
  CHECK(run_of({"{\"kind\":7}\n", R"({"top1":"x","interrupted":"yes","end":[4]})", odd, ""}).at("env") ==
        Json::parse(odd));
}

TEST_CASE("a page about several runs has the data and the text of each, in order") {
  const TemporaryFolder temp;
  write_run(temp, "a", {eval_line(50), R"({"steps":1,"end":"x"})", "", "lr = 1\n"});
  write_run(temp, "b<", {eval_line(60), R"({"steps":2})", "", "lr = 2\n"});
  const std::string page = page_of(temp, {"a", "b<"});
  const Json data = page_data(page);
  REQUIRE(data.at("runs").size() == 2);
  CHECK(data.at("runs").at(0).at("name") == "a");
  CHECK(data.at("runs").at(1).at("name") == "b<");
  CHECK(data.at("runs").at(1).at("results").at("Acc@1 (%)") == "60.00");
  CHECK_THAT(page, Catch::Contains("<title>a, b&lt;</title>") &&
                       Catch::Contains("<pre>a\n  Acc@1 (%): 50.00\n  Acc@5 (%): 99.50\n") &&
                       Catch::Contains("b&lt;\n  Acc@1 (%): 60.00\n") &&
                       Catch::Contains("  note: only 0 measurements of throughput\n</pre></noscript>"));
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

TEST_CASE("texts cannot become markup or script of a page, and invisible characters are shown as messages do") {
  const TemporaryFolder temp;
  const std::string hostile = "</script><script>alert(1)</script><!--\"'&\u2028cow\u202egpj\xff";
  const std::string shown = "</script><script>alert(1)</script><!--\"'&\\xe2\\x80\\xa8cow\\xe2\\x80\\xaegpj";
  const Json env{{"parts", {{{"host", hostile}, {hostile, "http://me:secret@host/<x>"}}}}};
  write_run(temp, "<b>&\"run", {"", "", json_line(env), "model = \"" + hostile + "\"\nlr = 1\n"});
  write_text(temp / "<b>&\"run/predictions.json", json_line({{"classes", {hostile}}}));
  const std::string page = page_of(temp, {"<b>&\"run"});
  CHECK(count(page, "<script") == 2);
  CHECK(count(page, "</script") == 2);
  CHECK_THAT(page, Catch::Contains("<title>&lt;b&gt;&amp;\"run</title>") && !Catch::Contains("<b>") &&
                       !Catch::Contains("\u2028") && !Catch::Contains("secret") && !Catch::Contains("<!--"));
  const Json run = page_data(page).at("runs").at(0);
  CHECK(run.at("name") == "<b>&\"run");
  CHECK(run.at("config") == "model = \"" + shown + "\\xff\"\nlr = 1\n");
  const Json& part = run.at("env").at("parts").at(0);
  CHECK(part.at("host") == shown + "\ufffd");  // of a byte that is not UTF-8, in a JSON file
  CHECK(part.at(shown + "\ufffd") == "http://***@host/<x>");
  CHECK(run.at("predictions").at("classes").at(0) == shown + "\ufffd");
}

TEST_CASE("a page needs no other file, allows only its own script, and its fixed part has at most 60 KB") {
  CHECK(kReportPage.size() <= 60'000);
  const TemporaryFolder temp;
  write_run(temp, "run", {"", "", "", ""});
  const std::string page = page_of(temp, {"run"});
  CHECK_THAT(page, Catch::StartsWith("<!doctype html>\n<html lang=\"en\">") && Catch::EndsWith("</body></html>\n") &&
                       Catch::Contains("name=\"viewport\"") && Catch::Contains("prefers-color-scheme:dark") &&
                       Catch::Contains("@media print") && !Catch::Contains("{{"));
  CHECK(count(page, "http") == 2);  // http-equiv, and the name of SVG
  for (const char* outside : {"src=\"", "url(", "@import", "innerHTML", "eval("})
    CHECK_THAT(page, !Catch::Contains(outside));
  const std::size_t begin = page.rfind("<script>") + 8;
  Sha256 hash;
  hash.add(page.data() + begin, page.find("</script>", begin) - begin);
  CHECK_THAT(page, Catch::Contains("content=\"default-src 'none'; script-src 'sha256-" + base64(hash.digest()) +
                                   "'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
                                   "form-action 'none'\">"));
}

TEST_CASE("a page of JSON text has the same data, and refuses text that is not a JSON object") {
  const std::string page = report_page("a <title>", "a\n<text>", "{\"b\":[1,2.5,null,true,\"<\xff\"]}");
  CHECK(page_data(page) == Json{{"b", {1, 2.5, nullptr, true, "<\ufffd"}}});
  CHECK_THAT(page, Catch::Contains("<title>a &lt;title&gt;</title>") && Catch::Contains("<pre>a\n&lt;text&gt;</pre>"));
  for (const char* text : {"", "{", "[]", "7", "{} x"})
    expect_error(ErrorCode::usage, {"not a JSON object"}, [&] { report_page("", "", text); });
}

TEST_CASE("a folder without a run is refused, and a page that cannot be written") {
  const TemporaryFolder temp;
  expect_error(ErrorCode::data, {temp.path(), "metrics.jsonl"},
               [&] { write_report({temp.path()}, temp / "out.html"); });
  CHECK_FALSE(std::filesystem::exists(temp / "out.html"));
  write_run(temp, "run", {"", "", "", ""});
  expect_error(ErrorCode::io, {"none"}, [&] { write_report({temp / "run"}, temp / "none/out.html"); });
}

}  // namespace
