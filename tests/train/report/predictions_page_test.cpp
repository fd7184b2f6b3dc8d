// The page's section about predictions, exactly, and the limits of predictions.json.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/train/report/png_image.h"
#include "engine/train/report/predictions_section.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp;
using dp::test::TemporaryFolder;
using dp::test::write_text;

struct Count {
  std::int64_t truth, predicted, images;
};

PredictionsRecord record_of(std::int64_t classes, const std::vector<Count>& counts,
                            const std::vector<std::string>& names = {}) {
  PredictionsRecord record;
  record.names = names;
  record.predictions.classes = classes;
  record.predictions.counts.assign(static_cast<std::size_t>(classes * classes), 0);
  for (const Count& one : counts)
    record.predictions.counts[static_cast<std::size_t>(one.truth * classes + one.predicted)] = one.images;
  return record;
}

RunData run_of(const PredictionsRecord& record, const std::string& name = "run") {
  RunData run;
  run.name = name;
  run.predictions = record;
  return run;
}

// The first figure of a page.
std::string figure_of(const std::string& page) {
  const std::size_t begin = page.find("<figure>"), end = page.find("</figure>\n");
  return begin == std::string::npos ? "" : page.substr(begin, end + 10 - begin);
}

std::string behind(const std::string& page, const std::string& part) {
  const std::size_t at = page.find(part);
  return at == std::string::npos ? "" : page.substr(at + part.size());
}

TEST_CASE("the whole drawing of a confusion matrix with names, numbers and tooltips") {
  const auto record =
      record_of(3, {{0, 0, 8}, {0, 1, 2}, {1, 1, 7}, {1, 2, 13}}, {"cat", "größe <abcdef", "exactly 10"});
  const std::string wanted =
      R"x(<figure><figcaption><b>Confusion matrix</b> <small>images of the test set</small></figcaption>)x"
      R"x(<svg viewBox="0 0 360 354.0" role="img" aria-label="Confusion matrix">)x"
      R"x(<text x="222.0" y="11" class="middle">predicted</text>)x"
      R"x(<text transform="translate(11 216.0) rotate(-90)" class="middle">true</text>)x"
      R"x(<text x="80.0" y="127.3" class="end">cat</text>)x"
      R"x(<text transform="translate(133.3 74.0) rotate(-90)">cat</text>)x"
      R"x(<text x="80.0" y="219.0" class="end">größe &lt;ab…</text>)x"
      R"x(<text transform="translate(225.0 74.0) rotate(-90)">größe &lt;ab…</text>)x"
      R"x(<text x="80.0" y="310.7" class="end">exactly 10</text>)x"
      R"x(<text transform="translate(316.7 74.0) rotate(-90)">exactly 10</text>)x"
      R"x(<path class="c0" fill-opacity="0.8" d="M84.0 78.0h91.7v91.7h-91.7z"><title>cat taken for cat: 8 )x"
      R"x((80.0 %)</title></path>)x"
      R"x(<path class="c1" fill-opacity="0.4" d="M175.7 78.0h91.7v91.7h-91.7z"><title>cat taken for größe )x"
      R"x(&lt;abcdef: 2 (20.0 %)</title></path>)x"
      R"x(<path class="c0" fill-opacity="0.4" d="M175.7 169.7h91.7v91.7h-91.7z"><title>größe &lt;abcdef taken )x"
      R"x(for größe &lt;abcdef: 7 (35.0 %)</title></path>)x"
      R"x(<path class="c1" fill-opacity="1.0" d="M267.3 169.7h91.7v91.7h-91.7z"><title>größe &lt;abcdef taken )x"
      R"x(for exactly 10: 13 (65.0 %)</title></path>)x"
      R"x(<g class="counts" font-size="11.0">)x"
      R"x(<text x="129.8" y="127.8" class="middle on">8</text>)x"
      R"x(<text x="221.5" y="127.8" class="middle off">2</text>)x"
      R"x(<text x="221.5" y="219.5" class="middle off">7</text>)x"
      R"x(<text x="313.2" y="219.5" class="middle on">13</text>)x"
      R"x(</g>)x"
      R"x(<path class="frame" d="M84.0 78.0h275.0v275.0h-275.0z"/></svg>)x"
      R"x(<p class="legend">)x"
      R"x(<span><svg viewBox="0 0 12 12"><rect class="c0" width="12" height="12"/></svg> right; strongest: )x"
      R"x(all images of the class</span>)x"
      R"x(<span><svg viewBox="0 0 12 12"><rect class="c1" width="12" height="12"/></svg> wrong; strongest: )x"
      R"x(65.0 % of the class</span>)x"
      R"x(</p></figure>)x"
      "\n";
  CHECK(figure_of(predictions_section({run_of(record)})) == wanted);
}

TEST_CASE("a confusion matrix without names has numbers as labels") {
  const auto record = record_of(3, {{0, 0, 9}, {1, 0, 1}, {1, 1, 12345}, {2, 2, 3}});
  const std::string wanted =
      R"x(<figure><figcaption><b>Confusion matrix</b> <small>images of the test set</small></figcaption>)x"
      R"x(<svg viewBox="0 0 360 356.0" role="img" aria-label="Confusion matrix">)x"
      R"x(<text x="197.0" y="11" class="middle">predicted</text>)x"
      R"x(<text transform="translate(11 193.0) rotate(-90)" class="middle">true</text>)x"
      R"x(<text x="30.0" y="87.7" class="end">0</text>)x"
      R"x(<text x="88.2" y="26.0" class="middle">0</text>)x"
      R"x(<text x="30.0" y="196.0" class="end">1</text>)x"
      R"x(<text x="196.5" y="26.0" class="middle">1</text>)x"
      R"x(<text x="30.0" y="304.3" class="end">2</text>)x"
      R"x(<text x="304.8" y="26.0" class="middle">2</text>)x"
      R"x(<path class="c0" fill-opacity="1.0" d="M34.0 30.0h108.3v108.3h-108.3z"><title>0 taken for 0: 9 )x"
      R"x((100.0 %)</title></path>)x"
      R"x(<path class="c1" fill-opacity="1.0" d="M34.0 138.3h108.3v108.3h-108.3z"><title>1 taken for 0: 1 )x"
      R"x((0.0 %)</title></path>)x"
      R"x(<path class="c0" fill-opacity="1.0" d="M142.3 138.3h108.3v108.3h-108.3z"><title>1 taken for 1: )x"
      R"x(12345 (100.0 %)</title></path>)x"
      R"x(<path class="c0" fill-opacity="1.0" d="M250.7 246.7h108.3v108.3h-108.3z"><title>2 taken for 2: 3 )x"
      R"x((100.0 %)</title></path>)x"
      R"x(<g class="counts" font-size="11.0">)x"
      R"x(<text x="88.2" y="88.1" class="middle on">9</text>)x"
      R"x(<text x="88.2" y="196.5" class="middle on">1</text>)x"
      R"x(<text x="196.5" y="196.5" class="middle on">12345</text>)x"
      R"x(<text x="304.8" y="304.8" class="middle on">3</text>)x"
      R"x(</g>)x"
      R"x(<path class="frame" d="M34.0 30.0h325.0v325.0h-325.0z"/></svg>)x"
      R"x(<p class="legend">)x"
      R"x(<span><svg viewBox="0 0 12 12"><rect class="c0" width="12" height="12"/></svg> right; strongest: )x"
      R"x(all images of the class</span>)x"
      R"x(<span><svg viewBox="0 0 12 12"><rect class="c1" width="12" height="12"/></svg> wrong; strongest: )x"
      R"x(0.0 % of the class</span>)x"
      R"x(</p></figure>)x"
      "\n";
  CHECK(figure_of(predictions_section({run_of(record)})) == wanted);
}

TEST_CASE("a confusion matrix of more than 20 classes has one path for each shade and every tenth label") {
  const auto record = record_of(21, {{0, 0, 4}, {0, 20, 1}, {0, 1, 2}, {1, 1, 3}, {20, 20, 5}, {1, 2, 1}});
  const std::string wanted =
      R"x(<figure><figcaption><b>Confusion matrix</b> <small>images of the test set</small></figcaption>)x"
      R"x(<svg viewBox="0 0 360 356.0" role="img" aria-label="Confusion matrix">)x"
      R"x(<text x="197.0" y="11" class="middle">predicted</text>)x"
      R"x(<text transform="translate(11 193.0) rotate(-90)" class="middle">true</text>)x"
      R"x(<text x="30.0" y="41.2" class="end">0</text>)x"
      R"x(<text x="41.7" y="26.0" class="middle">0</text>)x"
      R"x(<text x="30.0" y="196.0" class="end">10</text>)x"
      R"x(<text x="196.5" y="26.0" class="middle">10</text>)x"
      R"x(<text x="30.0" y="350.8" class="end">20</text>)x"
      R"x(<text x="351.3" y="26.0" class="middle">20</text>)x"
      R"x(<path class="c0" fill-opacity="0.6" d="M34.0 30.0h15.5v15.5h-15.5z"/>)x"
      R"x(<path class="c0" fill-opacity="0.8" d="M49.5 45.5h15.5v15.5h-15.5z"/>)x"
      R"x(<path class="c0" fill-opacity="1.0" d="M343.5 339.5h15.5v15.5h-15.5z"/>)x"
      R"x(<path class="c1" fill-opacity="0.5" d="M343.5 30.0h15.5v15.5h-15.5z"/>)x"
      R"x(<path class="c1" fill-opacity="0.9" d="M65.0 45.5h15.5v15.5h-15.5z"/>)x"
      R"x(<path class="c1" fill-opacity="1.0" d="M49.5 30.0h15.5v15.5h-15.5z"/>)x"
      R"x(<g class="counts" font-size="11.0">)x"
      R"x(</g>)x"
      R"x(<path class="frame" d="M34.0 30.0h325.0v325.0h-325.0z"/></svg>)x"
      R"x(<p class="legend">)x"
      R"x(<span><svg viewBox="0 0 12 12"><rect class="c0" width="12" height="12"/></svg> right; strongest: )x"
      R"x(all images of the class</span>)x"
      R"x(<span><svg viewBox="0 0 12 12"><rect class="c1" width="12" height="12"/></svg> wrong; strongest: )x"
      R"x(28.6 % of the class</span>)x"
      R"x(</p></figure>)x"
      "\n";
  CHECK(figure_of(predictions_section({run_of(record)})) == wanted);
}

TEST_CASE("a confusion matrix of 20 classes has labels, and numbers if they are large enough to read") {
  for (const std::int64_t most : {999, 1000}) {
    const std::string page = predictions_section({run_of(record_of(20, {{0, 0, most}, {19, 18, 1}}))});
    CHECK_THAT(page, Catch::Contains(" class=\"end\">19</text>") && Catch::Contains("19 taken for 18: 1 (100.0 %)"));
    CHECK((page.find(fmt::format("class=\"middle on\">{}</text>", most)) != std::string::npos) == (most == 999));
    CHECK_THAT(page, Catch::Contains(most == 999 ? "font-size=\"7.9\">" : "font-size=\"5.9\"></g>"));
  }
  const std::string right = predictions_section({run_of(record_of(2, {{0, 0, 1}, {1, 1, 1}}))});
  CHECK_THAT(right, !Catch::Contains("wrong; strongest"));
}

TEST_CASE("the section names weights, step and images, lists the worst classes first and shows each wrong image") {
  auto record = record_of(4, {{0, 0, 3}, {0, 2, 1}, {1, 0, 2}, {1, 2, 2}, {1, 3, 1}, {3, 3, 4}}, {"a", "b<", "c", "d"});
  record.predictions.step = 21, record.predictions.samples = 13;
  record.predictions.wrong = {{7, 1, 2, 0.875}, {0, 0, 2, 0.5}};
  record.images = {"AAAA", "BBBB"};
  const std::string page = predictions_section({run_of(record)});
  CHECK_THAT(page,
             Catch::StartsWith("<h2>Predictions</h2>\n<p class=\"soft\">The weights at step 21, 13 test images.</p>\n"
                               "<div class=\"classes\">\n<figure><figcaption><b>Confusion matrix</b> "));
  CHECK(behind(page, "</figure>\n") ==
        "<div><h3>Classes, worst first</h3>\n"
        "<table><tr><th>class</th><th>Acc@1</th><th>images</th><th>mostly taken for</th></tr>\n"
        "<tr><td>b&lt;</td><td class=\"number\">0.0 %</td><td class=\"number\">5</td><td>a (2)</td></tr>\n"
        "<tr><td>a</td><td class=\"number\">75.0 %</td><td class=\"number\">4</td><td>c (1)</td></tr>\n"
        "<tr><td>d</td><td class=\"number\">100.0 %</td><td class=\"number\">4</td><td>-</td></tr>\n"
        "</table>\n</div>\n</div>\n"
        "<h3>The most confident errors</h3>\n<p class=\"soft\">The predicted class and its probability, then the true "
        "class.</p>\n<div class=\"wrong\">\n"
        "<figure><svg viewBox=\"0 0 1 1\" role=\"img\" aria-label=\"test image 7\"><image width=\"1\" height=\"1\" "
        "href=\"data:image/png;base64,AAAA\"/></svg><figcaption><b>c</b> 87.5 %<br><small>true: b&lt;</small>"
        "</figcaption></figure>\n"
        "<figure><svg viewBox=\"0 0 1 1\" role=\"img\" aria-label=\"test image 0\"><image width=\"1\" height=\"1\" "
        "href=\"data:image/png;base64,BBBB\"/></svg><figcaption><b>c</b> 50.0 %<br><small>true: a</small>"
        "</figcaption></figure>\n</div>\n");
  record.predictions.average = true;
  CHECK_THAT(predictions_section({run_of(record)}), Catch::Contains(">The moving average of the weights at step 21, "));
}

TEST_CASE("the table of classes shows twelve and folds the others") {
  for (const std::int64_t classes : {12, 14}) {
    std::vector<Count> counts;
    for (std::int64_t k = 0; k < classes; ++k) counts.push_back({k, k, 1});
    const std::string page = predictions_section({run_of(record_of(classes, counts))});
    const std::size_t folded = page.find("<details>");
    REQUIRE((folded != std::string::npos) == (classes > 12));
    CHECK_THAT(page.substr(0, folded), Catch::Contains("<td>11</td>") && !Catch::Contains("<td>12</td>"));
    if (classes == 12) continue;
    CHECK(page.substr(folded) ==
          "<details><summary>2 further classes</summary>\n"
          "<table><tr><th>class</th><th>Acc@1</th><th>images</th><th>mostly taken for</th></tr>\n"
          "<tr><td>12</td><td class=\"number\">100.0 %</td><td class=\"number\">1</td><td>-</td></tr>\n"
          "<tr><td>13</td><td class=\"number\">100.0 %</td><td class=\"number\">1</td><td>-</td></tr>\n"
          "</table></details>\n</div>\n</div>\n");
  }
}

TEST_CASE("the predictions of several runs are folded, each under the name of its run") {
  auto first = record_of(2, {{0, 0, 1}, {1, 1, 1}}), second = first;
  second.predictions.wrong = {{3, 0, 1, 1}};
  second.images = {"CCCC"};
  RunData without;
  without.name = "x";
  const std::string page = predictions_section({run_of(first, "a"), without, run_of(second, "b<")});
  CHECK_THAT(page, Catch::StartsWith("<h2>Predictions</h2>\n<div class=\"charts\">\n<figure><figcaption><b>Confusion "
                                     "matrix, a</b> ") &&
                       Catch::Contains("<b>Confusion matrix, b&lt;</b> ") && !Catch::Contains("matrix, x"));
  const std::string table =
      "</summary>\n<div class=\"classes\">\n<div><h3>Classes, worst first</h3>\n"
      "<table><tr><th>class</th><th>Acc@1</th><th>images</th><th>mostly taken for</th></tr>\n"
      "<tr><td>0</td><td class=\"number\">100.0 %</td><td class=\"number\">1</td><td>-</td></tr>\n"
      "<tr><td>1</td><td class=\"number\">100.0 %</td><td class=\"number\">1</td><td>-</td></tr>\n"
      "</table>\n</div>\n</div>\n";
  const std::string rest = page.substr(page.find("<details>"));
  CHECK_THAT(rest, Catch::StartsWith("<details><summary>Classes and errors of a" + table +
                                     "</details>\n<details><summary>Classes and errors of b&lt;" + table +
                                     "<h3>The most confident errors</h3>\n") &&
                       Catch::EndsWith("</div>\n</details>\n") && Catch::Contains("base64,CCCC"));
}

TEST_CASE("only a single run that has evaluated explains why it has no confusion matrix") {
  RunData run;
  CHECK(predictions_section({run}).empty());
  run.evaluations.push_back({{"kind", "eval"}});
  CHECK(predictions_section({run}) ==
        "<p class=\"soft\">There is no confusion matrix: a run records one for up to 100 classes.</p>\n");
  CHECK(predictions_section({run, run}).empty());
}

nlohmann::json smallest() {
  using Json = nlohmann::json;
  const Json wrong{{"index", 0}, {"true", 0}, {"predicted", 0}, {"probability", 0}, {"image", "A"}};
  Json json{{"step", 0}, {"average", false}, {"samples", 0}};
  json["classes"] = Json::array();
  json["confusion"] = std::vector<std::vector<int>>{{0}};
  json["wrong"] = std::vector<Json>{wrong};
  return json;
}

TEST_CASE("predictions.json is read up to the limits of each field and refused beyond them") {
  const TemporaryFolder temp;
  const auto read = [&](const nlohmann::json& json) {
    write_text(temp / "p.json", json.dump());
    return read_predictions(temp / "p.json");
  };
  const auto low = read(smallest());
  REQUIRE(low);
  CHECK(low->predictions.classes == 1);
  CHECK(low->predictions.counts == std::vector<std::int64_t>{0});
  CHECK(low->names.empty());
  CHECK(low->images == std::vector<std::string>{"A"});
  const std::int64_t most = std::int64_t{1} << 40;
  nlohmann::json large = smallest();
  large["step"] = most, large["average"] = true, large["samples"] = most;
  large["confusion"] = std::vector<std::vector<std::int64_t>>(100, std::vector<std::int64_t>(100, most));
  large["classes"] = std::vector<std::string>(100, "name");
  const nlohmann::json wrong{
      {"index", most}, {"true", 99}, {"predicted", 98}, {"probability", 1}, {"image", "AZaz09+/="}};
  large["wrong"] = std::vector<nlohmann::json>(24, wrong);
  const auto high = read(large);
  REQUIRE(high);
  CHECK(high->predictions.step == most);
  CHECK(high->predictions.average);
  CHECK(high->predictions.samples == most);
  CHECK(high->predictions.classes == 100);
  CHECK(high->predictions.counts == std::vector<std::int64_t>(10000, most));
  CHECK(high->names == std::vector<std::string>(100, "name"));
  REQUIRE(high->predictions.wrong.size() == 24);
  for (const WrongSample& one : high->predictions.wrong) {
    CHECK(one.index == most);
    CHECK(one.truth == 99);
    CHECK(one.predicted == 98);
    CHECK(one.probability == 1);
  }
  CHECK(high->images == std::vector<std::string>(24, "AZaz09+/="));
  for (const char* pointer : {"/step", "/samples", "/confusion/0/0", "/wrong/0/index"})
    for (const std::int64_t outside : {most + 1, std::int64_t{-1}}) {
      INFO(pointer << " " << outside);
      nlohmann::json changed = large;
      changed[nlohmann::json::json_pointer(pointer)] = outside;
      CHECK_FALSE(read(changed));
    }
  large["wrong"].push_back(wrong);
  CHECK_FALSE(read(large));
  // More than 16 MiB are not read.
  write_text(temp / "p.json", smallest().dump() + std::string(std::size_t{16} << 20, ' '));
  CHECK_FALSE(read_predictions(temp / "p.json"));
}

TEST_CASE("labels outside the classes count as samples only, and equal errors are listed by index") {
  EvaluatedLogits evaluated;
  evaluated.samples = {9, 4, 6, 1, 2};
  evaluated.labels = {0, 0, -1, 2, 1};
  evaluated.logits = Tensor(Shape{5, 2}, DType::f64);
  for (int i = 0; i < 10; ++i) evaluated.logits.data<double>()[i] = i % 2;
  const Predictions found = predictions_of(evaluated, 2);
  CHECK(found.samples == 5);
  CHECK(found.counts == std::vector<std::int64_t>{0, 2, 0, 1});
  REQUIRE(found.wrong.size() == 2);
  CHECK(found.wrong[0].index == 4);
  CHECK(found.wrong[1].index == 9);
  for (const WrongSample& one : found.wrong) {
    CHECK(one.truth == 0);
    CHECK(one.predicted == 1);
    CHECK(one.probability == Approx(1 / (1 + std::exp(-1.0))));
  }
}

// Width and height of a PNG, from its header.
std::pair<int, int> size_of(const std::vector<std::uint8_t>& png) {
  const auto number = [&](std::size_t at) {
    return png[at] << 24 | png[at + 1] << 16 | png[at + 2] << 8 | png[at + 3];
  };
  return {number(16), number(20)};
}

TEST_CASE("an image on the page has at most 80 pixels in each direction") {
  const std::vector<std::uint8_t> bytes(81 * 81, 7);
  CHECK(size_of(png_of({1, 80, 80}, bytes)) == std::pair(80, 80));
  CHECK(size_of(png_of({1, 81, 4}, bytes)) == std::pair(2, 41));
  CHECK(size_of(png_of({1, 1, 81}, bytes)) == std::pair(41, 1));
}

}  // namespace
