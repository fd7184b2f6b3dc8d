#include "apps/dp_bench/report/report.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <regex>
#include <utility>

#include "support/catch.h"

using namespace dp_bench;

namespace {

Report sample() {
  Report report{"step", "a <model> & \"more\"", {{"command", "dp_bench step\n"}}, {}};
  Section section{"rows",  "Title",
                  "Text.", {{"what", "what"}, {"ms", "ms", 2}, {"low", "quartile", 2}, {"high", "quartile", 2}},
                  {},      Bars{1, 2, 3, true}};
  section.rows.push_back({{std::string("first <b>"), 2.0, 1.5, 2.5}, Kind::measured, "", {2.0, 1.5, 2.5}});
  section.rows.push_back({{std::string("second"), 4.0}, Kind::modelled, "by \\ constants", {}});
  section.rows.push_back({{std::string("third")}, Kind::absent, "needs a GPU", {}});
  section.rows.push_back({{std::string("fourth"), std::numeric_limits<double>::quiet_NaN()}, Kind::published, "", {}});
  report.sections.push_back(section);
  return report;
}

}  // namespace

TEST_CASE("JSON has kinds, typed cells by key, samples and notes, and no NaN") {
  const auto parsed = nlohmann::json::parse(to_json(sample()));
  CHECK(parsed.at("program") == "dp_bench");
  CHECK(parsed.at("schema") == 1);
  CHECK(parsed.at("command") == "step");
  CHECK(parsed.at("facts").at("command") == "dp_bench step\n");
  const auto& section = parsed.at("sections").at(0);
  CHECK(section.at("key") == "rows");
  CHECK(section.at("columns").at("ms") == "ms");
  const auto& rows = section.at("rows");
  CHECK(rows.at(0).at("kind") == "measured");
  CHECK(rows.at(0).at("what") == "first <b>");
  CHECK(rows.at(0).at("ms") == 2.0);
  CHECK(rows.at(0).at("samples").size() == 3);
  CHECK(rows.at(1).at("kind") == "modelled");
  CHECK(rows.at(1).at("note") == "by \\ constants");
  CHECK(rows.at(1).at("high").is_null());
  CHECK(rows.at(2).at("kind") == "not run");
  CHECK(rows.at(3).at("ms").is_null());
}

TEST_CASE("JSON has the digits of columns, the bars and the chart that the page draws") {
  Report report = sample();
  report.sections[0].chart =
      LineChart{"size",
                "img/s",
                {{.label = "a", .points = {{1, 50}, {4, std::numeric_limits<double>::infinity()}}, .color = 2},
                 {.label = "", .points = {}, .dashed = true},
                 {.label = "b", .points = {{64, 50}}, .level = true}}};
  Section plain{"plain", "P", "", {{"what", "what"}, {"ms", "ms", 1}}, {}, Bars{1, {}, {}, false}};
  report.sections.push_back(plain);
  const auto parsed = nlohmann::json::parse(to_json(report));
  const auto& section = parsed.at("sections").at(0);
  CHECK(section.at("digits") == nlohmann::json{{"what", 0}, {"ms", 2}, {"low", 2}, {"high", 2}});
  CHECK(section.at("bars") ==
        nlohmann::json{{"value", "ms"}, {"low", "low"}, {"high", "high"}, {"less_is_better", true}});
  CHECK(section.at("chart") == nlohmann::json::parse(R"json({"x": "size", "y": "img/s", "lines": [
    {"label": "a", "color": 2, "dashed": false, "level": false, "points": [[1, 50], [4, null]]},
    {"label": "", "color": 0, "dashed": true, "level": false, "points": []},
    {"label": "b", "color": 0, "dashed": false, "level": true, "points": [[64, 50]]}]})json"));
  CHECK(parsed.at("sections").at(1).at("bars") == nlohmann::json{{"value", "ms"}, {"less_is_better", false}});
  CHECK_FALSE(parsed.at("sections").at(1).contains("chart"));
}

TEST_CASE("the page has the JSON and the text of the report, and no text of it becomes markup") {
  Report report = sample();
  report.facts.emplace_back("note", "</script><b>\xff");
  const std::string page = to_html(report);
  const std::string begin = "id=\"data\">";
  const auto at = page.find(begin) + begin.size();
  auto parsed = nlohmann::json::parse(page.substr(at, page.find("</script>", at) - at));
  CHECK(parsed.at("facts").at("note") == "</script><b>\ufffd");
  parsed.at("facts").erase("note");
  CHECK(parsed == nlohmann::json::parse(to_json(sample())));
  CHECK(page.find("<title>dp_bench step: a &lt;model&gt; &amp; \"more\"</title>") != std::string::npos);
  CHECK(page.find("<b>") == std::string::npos);
  CHECK(page.find("first &lt;b&gt;  2.00      1.50      2.50  measured\n") != std::string::npos);  // without scripts
}

TEST_CASE("markdown has a heading, the facts and a table for each section") {
  const std::string text = to_markdown(sample());
  CHECK(text.starts_with("# a <model>"));
  CHECK(text.find("| what | ms | quartile | quartile | source |\n|---|---|---|---|---|\n") != std::string::npos);
  CHECK(text.find("| second | 4.00 | - | - | modelled: by \\ constants |\n") != std::string::npos);
}

TEST_CASE("text has aligned columns, and rows without a measurement give the reason") {
  const std::string text = to_text(sample());
  CHECK(text.find("first <b>  2.00      1.50      2.50  measured\n") != std::string::npos);
  CHECK(text.find("second     4.00         -         -  modelled: by \\ constants\n") != std::string::npos);
  CHECK(text.find("third         -         -         -  not run: needs a GPU\n") != std::string::npos);
}

TEST_CASE("the whole report as JSON") {
  const auto parsed = nlohmann::json::parse(to_json(sample()));
  CHECK(parsed == nlohmann::json::parse(R"json({"program": "dp_bench", "schema": 1, "command": "step",
    "title": "a <model> & \"more\"", "facts": {"command": "dp_bench step\n"},
    "sections": [{"key": "rows", "title": "Title", "text": "Text.",
      "columns": {"what": "what", "ms": "ms", "low": "quartile", "high": "quartile"},
      "digits": {"what": 0, "ms": 2, "low": 2, "high": 2},
      "bars": {"value": "ms", "low": "low", "high": "high", "less_is_better": true},
      "rows": [
        {"kind": "measured", "what": "first <b>", "ms": 2.0, "low": 1.5, "high": 2.5, "samples": [2.0, 1.5, 2.5]},
        {"kind": "modelled", "what": "second", "ms": 4.0, "low": null, "high": null, "note": "by \\ constants"},
        {"kind": "not run", "what": "third", "ms": null, "low": null, "high": null, "note": "needs a GPU"},
        {"kind": "published", "what": "fourth", "ms": null, "low": null, "high": null}]}]})json"));
  Report report{"ops", "\x01\x1f \t\"\\\x7f", {{"a", "b"}, {"c", "d"}}, {}};
  CHECK(nlohmann::json::parse(to_json(report)).at("title") == report.title);
  CHECK(nlohmann::json::parse(to_json(report)).at("facts") == nlohmann::json{{"a", "b"}, {"c", "d"}});
  report.sections = {{"one", "", "", {{"value", ""}}, {{{0.12345678949}}}, {}}, {"two", "", "", {}, {}, {}}};
  CHECK(to_json(report).find("\"value\":0.123456789}") != std::string::npos);
  CHECK(nlohmann::json::parse(to_json(report)).at("sections").size() == 2);
}

TEST_CASE("the whole report as text and as markdown") {
  CHECK(to_text(sample()) ==
        "a <model> & \"more\"\n"
        "  command: dp_bench step\n"
        "\n"
        "\n"
        "Title\n"
        "what         ms  quartile  quartile\n"
        "first <b>  2.00      1.50      2.50  measured\n"
        "second     4.00         -         -  modelled: by \\ constants\n"
        "third         -         -         -  not run: needs a GPU\n"
        "fourth        -         -         -  published\n"
        "Text.\n");
  CHECK(to_markdown(sample()) ==
        "# a <model> & \"more\"\n"
        "\n"
        "- command: `dp_bench step\n"
        "`\n"
        "\n"
        "## Title\n"
        "\n"
        "| what | ms | quartile | quartile | source |\n"
        "|---|---|---|---|---|\n"
        "| first <b> | 2.00 | 1.50 | 2.50 | measured |\n"
        "| second | 4.00 | - | - | modelled: by \\ constants |\n"
        "| third | - | - | - | not run: needs a GPU |\n"
        "| fourth | - | - | - | published |\n"
        "\n"
        "Text.\n");
  // Without remarks and without a text. A letter of two bytes is one column wide.
  Report plain{"step", "b", {{"rounds", "2"}}, {}};
  plain.sections.push_back({"", "c", "", {{"", "d"}, {"", "\u00b5s"}}, {{{std::string("\u00e9"), 1.0}}}, {}});
  CHECK(to_text(plain) == "b\n  rounds: 2\n\nc\nd  \u00b5s\n\u00e9   1\n");
  CHECK(to_markdown(plain) == "# b\n\n- rounds: 2\n\n## c\n\n| d | \u00b5s |\n|---|---|\n| \u00e9 | 1 |\n");
}

TEST_CASE("quantiles interpolate linearly, in any order of the values") {
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({4, 1, 3, 2}) == 2.5);
  CHECK(quantile({4, 1, 3, 2}, 0.25) == 1.75);  // numpy.quantile([1, 2, 3, 4], .25)
  CHECK(quantile({4, 1, 3, 2}, 0) == 1);
  CHECK(quantile({4, 1, 3, 2}, 1) == 4);
  CHECK(quantile({7}, 0.75) == 7);
  CHECK(std::isnan(median({})));
  std::vector<double> values{4, 1, 3, 2, std::nan("")};
  values.pop_back();  // its memory still holds a NaN after the last value
  CHECK(quantile(std::move(values), 1) == 4);
}

TEST_CASE("the interval of the median has 95 % confidence") {
  std::vector<double> values(100);
  std::iota(values.begin(), values.end(), 1.0);
  CHECK(median_interval(values).low == 41);  // 40 below: binomial(100, 1/2) has 95 % between 40 and 60
  CHECK(median_interval(values).high == 60);
  CHECK(median_interval({5, 1, 3}).low == 1);
  CHECK(median_interval({5, 1, 3}).high == 5);
}

TEST_CASE("ratios are formed round by round") {
  CHECK(ratios({1, 2, 4}, {2, 2, 2}) == std::vector<double>{2, 1, 0.5});
  CHECK(ratios({1, 2}, {3}).size() == 1);
}
