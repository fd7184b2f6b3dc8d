// The whole body of the HTML page, and the axes of its line charts.
#include <limits>
#include <regex>

#include "apps/dp_bench/report/html.h"
#include "apps/dp_bench/report/report.h"
#include "support/catch.h"

using namespace dp_bench;
using Lines = std::vector<std::string>;

namespace {

Section bars_section() {
  Section section{"rows",  "Title <s>",
                  "Text.", {{"what", "what"}, {"ms", "ms", 2}, {"low", "from", 2}, {"high", "to", 2}},
                  {},      Bars{1, 2, 3, true}};
  section.rows.push_back({{std::string("first <b>"), 2.0, 1.5, 2.5}, Kind::measured, "", {2.0}});
  section.rows.push_back({{std::string("second"), 4.0}, Kind::modelled, "by > constants", {}});
  section.rows.push_back({{std::string("third")}, Kind::absent, "needs a GPU", {}});
  section.rows.push_back({{std::string("fourth"), 3.0, 3.0, 3.0}, Kind::published, "", {}});
  return section;
}

std::string body_of(const Report& report) {
  const std::string page = to_html(report);
  return page.substr(page.find("<body>"));
}

std::string part(const std::string& text, const std::string& from, const std::string& to) {
  const auto begin = text.find(from), end = text.find(to, begin);
  REQUIRE(end != std::string::npos);
  return text.substr(begin, end + to.size() - begin);
}

// The labels of an axis, each with its place.
Lines labels(const std::string& chart, const std::string& position) {
  static const std::regex form("<text x=\"([-0-9.]+)\" y=\"([-0-9.]+)\" class=\"([a-z]+)\">([^<]*)</text>");
  Lines found;
  for (std::sregex_iterator it(chart.begin(), chart.end(), form), end; it != end; ++it)
    if ((*it)[3] == position) found.push_back((*it)[4].str() + " at " + (*it)[1].str() + "," + (*it)[2].str());
  return found;
}

Lines heights(double highest) {
  Lines texts = labels(line_chart({"x", "y", {{.label = "a", .points = {{1, highest}, {2, 0}}}}}), "end");
  for (std::string& text : texts) text = text.substr(0, text.find(' '));
  return texts;
}

}  // namespace

TEST_CASE("the body of a page has title, legend, bars, table, text and setup") {
  const Report report{"step", "a & \"b\"", {{"command", "dp_bench <step>"}, {"date", "today"}}, {bars_section()}};
  const std::string swatch = "<span><svg viewBox=\"0 0 20 10\"><rect class=\"",
                    svg = "<svg viewBox=\"0 0 1000 20\" preserveAspectRatio=\"none\" aria-hidden=\"true\">";
  const auto kind = [&](const std::string& name) {
    return swatch + name + "\" x=\"0\" y=\"0\" width=\"20\" height=\"10\"/></svg> " + name + "</span>";
  };
  CHECK(body_of(report) ==
        "<body>\n<h1>a &amp; &quot;b&quot;</h1>\n<h2>Title &lt;s&gt;</h2>\n<p class=\"legend\">" + kind("measured") +
            kind("modelled") + kind("published") + swatch +
            "spread\" x=\"0\" y=\"3\" width=\"20\" height=\"4\"/></svg> from to to</span>"
            "<span>shorter is better</span></p>\n<ul class=\"bars\">\n"
            "<li><div class=\"name\">first &lt;b&gt;<span>2.00 ms</span></div>" +
            svg +
            "<rect class=\"measured\" x=\"0\" y=\"3\" width=\"500.0\" height=\"14\"/>"
            "<rect class=\"spread\" x=\"375.0\" y=\"8\" width=\"250.0\" height=\"4\"/></svg></li>\n"
            "<li><div class=\"name\">second<span>4.00 ms</span></div>" +
            svg +
            "<rect class=\"modelled\" x=\"0\" y=\"3\" width=\"1000.0\" height=\"14\"/></svg></li>\n"
            "<li><div class=\"name\">third<span>not run: needs a GPU</span></div></li>\n"
            "<li><div class=\"name\">fourth<span>3.00 ms</span></div>" +
            svg +
            "<rect class=\"published\" x=\"0\" y=\"3\" width=\"750.0\" height=\"14\"/>"
            "<rect class=\"spread\" x=\"750.0\" y=\"8\" width=\"2.0\" height=\"4\"/></svg></li>\n</ul>\n"
            "<div class=\"wide\"><table><thead><tr><th scope=\"col\">what</th><th scope=\"col\">ms</th>"
            "<th scope=\"col\">from</th><th scope=\"col\">to</th><th scope=\"col\" class=\"remark\">source</th>"
            "</tr></thead><tbody>\n"
            "<tr><td>first &lt;b&gt;</td><td>2.00</td><td>1.50</td><td>2.50</td>"
            "<td class=\"remark\">measured</td></tr>\n"
            "<tr><td>second</td><td>4.00</td><td>-</td><td>-</td>"
            "<td class=\"remark\">modelled<span>by &gt; constants</span></td></tr>\n"
            "<tr><td>third</td><td>-</td><td>-</td><td>-</td>"
            "<td class=\"remark\">not run<span>needs a GPU</span></td></tr>\n"
            "<tr><td>fourth</td><td>3.00</td><td>3.00</td><td>3.00</td>"
            "<td class=\"remark\">published</td></tr>\n</tbody></table></div>\n"
            "<p>Text.</p>\n<h2>Setup</h2>\n<dl>\n<dt>command</dt><dd>dp_bench &lt;step&gt;</dd>\n"
            "<dt>date</dt><dd>today</dd>\n</dl>\n</body>\n</html>\n");
  CHECK_THAT(to_html(report), Catch::Contains("<title>dp_bench step: a &amp; &quot;b&quot;</title>\n<style>"));
}

TEST_CASE("a page without remarks, bars or a text has only the table") {
  Section section{"rows", "T", "", {{"what", "what"}, {"ms", "ms", 1}}, {}, {}};
  section.rows.push_back({{std::string("a"), 2.0}, Kind::measured, "", {}});
  const std::string table =
      "<div class=\"wide\"><table><thead><tr><th scope=\"col\">what</th><th scope=\"col\">ms</th></tr></thead><tbody>\n"
      "<tr><td>a</td><td>2.0</td></tr>\n</tbody></table></div>\n";
  CHECK(body_of({"step", "t", {}, {section}}) ==
        "<body>\n<h1>t</h1>\n<h2>T</h2>\n" + table + "<h2>Setup</h2>\n<dl>\n</dl>\n</body>\n</html>\n");
  section.rows[0].cells[1] = 0.0;
  section.bars = Bars{1, {}, {}, false};
  CHECK(body_of({"step", "t", {}, {section}}).find("<ul") == std::string::npos);  // no bar has a length
  section.rows[0].cells[1] = 2.0;
  CHECK(part(body_of({"step", "t", {}, {section}}), "<p class=\"legend\">", "</ul>\n") ==
        "<p class=\"legend\"><span><svg viewBox=\"0 0 20 10\"><rect class=\"measured\" x=\"0\" y=\"0\" width=\"20\" "
        "height=\"10\"/></svg> measured</span><span>longer is better</span></p>\n<ul class=\"bars\">\n"
        "<li><div class=\"name\">a<span>2.0 ms</span></div><svg viewBox=\"0 0 1000 20\" preserveAspectRatio=\"none\" "
        "aria-hidden=\"true\"><rect class=\"measured\" x=\"0\" y=\"3\" width=\"1000.0\" height=\"14\"/></svg></li>\n"
        "</ul>\n");
}

TEST_CASE("a whisker beyond all bars is inside the page") {
  Section section = bars_section();
  section.rows[0].cells[3] = 8.0;
  const std::string page = body_of({"step", "t", {}, {section}});
  CHECK_THAT(page, Catch::Contains("<rect class=\"measured\" x=\"0\" y=\"3\" width=\"250.0\"") &&
                       Catch::Contains("<rect class=\"spread\" x=\"187.5\" y=\"8\" width=\"812.5\""));
}

TEST_CASE("text in HTML keeps its lines, and shows invisible characters as messages do") {
  CHECK(escaped("a<b>&\"c\"\n\t\x01\x1f d\x7f") == "a&lt;b&gt;&amp;&quot;c&quot;\n\\x09\\x01\\x1f d\\x7f");
  CHECK(escaped("a\u202eb\n\n") == "a\\xe2\\x80\\xaeb\n\n");
}

TEST_CASE("the axis of y has at most six round values, from 0") {
  CHECK(heights(0.9) == Lines{"0.0", "0.2", "0.4", "0.6", "0.8"});
  CHECK(heights(1) == Lines{"0.0", "0.2", "0.4", "0.6", "0.8", "1.0"});
  CHECK(heights(2) == Lines{"0.0", "0.5", "1.0", "1.5", "2.0"});
  CHECK(heights(4) == Lines{"0", "1", "2", "3", "4"});
  CHECK(heights(5) == Lines{"0", "1", "2", "3", "4", "5"});
  CHECK(heights(30) == Lines{"0", "10", "20", "30"});
  CHECK(heights(199) == Lines{"0", "50", "100", "150"});
}

TEST_CASE("the axes of a chart: a grid line and a label for each value of y, and labels of x that have room") {
  const std::string chart =
      line_chart({"x", "y", {{.label = "a", .points = {{1, 50}, {4, 100}, {12, 10}, {13, 10}, {16, 0}}, .color = 4}}});
  CHECK(labels(chart, "end") == Lines{"0 at 36.0,200.0", "20 at 36.0,162.4", "40 at 36.0,124.8", "60 at 36.0,87.2",
                                      "80 at 36.0,49.6", "100 at 36.0,12.0"});
  CHECK(labels(chart, "middle") ==
        Lines{"16 at 350.0,214.0", "12 at 317.8,214.0", "4 at 195.0,214.0", "1 at 40.0,214.0"});
  CHECK_THAT(chart, Catch::Contains("<path class=\"grid\" d=\"M40.0 158.4H350.0\"/>"));
  // All of x below 1.
  CHECK_THAT(line_chart({"x", "y", {{.label = "a", .points = {{0.25, 1}, {0.5, 2}}}}}),
             Catch::Contains("points=\"40.0,102.0 350.0,8.0\""));
}

TEST_CASE("a whole chart of one point: caption, grid, the point in the middle, and the legend") {
  const Line line{.label = "a <b>", .points = {{5, 2}}, .color = 3};
  const std::string chart = line_chart({"x <s>", "y", {line}});
  CHECK(
      chart.starts_with("<figure><figcaption>y</figcaption><svg viewBox=\"0 0 360 220\" role=\"img\" "
                        "aria-label=\"y against x &lt;s&gt;\"><path class=\"grid\" d=\"M40.0 196.0H350.0\"/>"));
  CHECK(part(chart, "<text x=\"200.0\"", "</figure>\n") ==
        "<text x=\"200.0\" y=\"214.0\" class=\"middle\">5</text><polyline class=\"c3\" points=\"200.0,8.0\"/>"
        "<circle class=\"c3\" cx=\"200.0\" cy=\"8.0\" r=\"3\"/></svg><figcaption class=\"below\">x &lt;s&gt;"
        "</figcaption><p class=\"legend\"><span><svg class=\"sample\" viewBox=\"0 0 32 12\"><polyline class=\"c3\" "
        "points=\"0,6 32,6\"/><circle class=\"c3\" cx=\"16.0\" cy=\"6.0\" r=\"3\"/></svg> a &lt;b&gt;</span></p>"
        "</figure>\n");
  CHECK(line_chart({"x", "y", {{.label = "a", .points = {{5, 0}}}}}).empty());
  CHECK(line_chart({"x", "y", {{.label = "a", .points = {{0, 5}}}}}).empty());
  CHECK(line_chart({"x", "y", {{.label = "a", .points = {{5, 2}}, .level = true}}}).empty());
}

TEST_CASE("a chart's legend has dots for solid lines only, and points that cannot be drawn are left out") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const std::string chart =
      line_chart({"x",
                  "y",
                  {{.label = "dashed", .points = {{1, 5}, {2, nan}, {0, 9}, {inf, 9}, {4, 10}}, .dashed = true},
                   {.label = "level", .points = {{nan, 1}, {9, 5}, {10, 10}}, .color = 1, .level = true},
                   {.label = "", .points = {{-1, 7}}, .color = 2}}});
  CHECK(part(chart, "<p class", "</p>") ==
        "<p class=\"legend\"><span><svg class=\"sample\" viewBox=\"0 0 32 12\"><polyline class=\"c0 dashed\" "
        "points=\"0,6 32,6\"/></svg> dashed</span><span><svg class=\"sample\" viewBox=\"0 0 32 12\"><polyline "
        "class=\"c1\" points=\"0,6 32,6\"/></svg> level</span></p>");
  CHECK(part(chart, "<polyline", "</svg>") ==
        "<polyline class=\"c0 dashed\" points=\"40.0,102.0 350.0,8.0\"/>"
        "<polyline class=\"c1\" points=\"40.0,102.0 350.0,102.0\"/></svg>");
  CHECK(labels(chart, "middle") == Lines{"4 at 350.0,214.0", "1 at 40.0,214.0"});
}
