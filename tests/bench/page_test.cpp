// The HTML page in a headless browser: nothing is cut off, readable in both colour schemes, no error. Skipped without a
// browser.
#include <nlohmann/json.hpp>

#include "apps/dp_bench/report/report.h"
#include "bench/browser.h"
#include "bench/run_bench.h"
#include "dp/dp.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace dp::test;
using nlohmann::json;

namespace {

std::string attribute(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  return out;
}

constexpr int kPhone = 360, kDesk = 1280;

// Shows the page in a frame of each width and writes down what it measures. (The scroll width of a text in a chart
// counts in units of the screen, its client width in those of the chart.)
std::string harness(const std::string& page) {
  std::string frames;
  for (const int width : {kPhone, kDesk})
    frames +=
        "<iframe width=\"" + std::to_string(width) + "\" height=\"900\" srcdoc=\"" + attribute(page) + "\"></iframe>";
  return "<!DOCTYPE html><html><meta charset=\"utf-8\"><body>" + frames + R"js(<pre id="found"></pre><script>
const luminance = c => { const [r, g, b] = c.match(/[\d.]+/g).map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
  return .2126 * r + .7152 * g + .0722 * b; };
const contrast = (a, b) => { const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
const measure = frame => {
  const doc = frame.contentDocument, view = doc.defaultView, root = doc.documentElement, out = [];
  const back = view.getComputedStyle(doc.body).backgroundColor;
  for (const element of doc.body.querySelectorAll("*")) {
    if (element.closest(".wide table, noscript, script")) continue;
    const box = element.getBoundingClientRect(), style = view.getComputedStyle(element);
    if (box.right > root.clientWidth + .5 || box.left < -.5) out.push("cut: " + element.tagName + " " + element.className.toString());
    if (element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0 && !element.matches(".wide, svg text")) out.push("overflows: " + element.tagName);
    if (element.tagName == "rect" && contrast(style.fill, back) < 3) out.push("pale: " + element.className.baseVal);
    if (element.matches("p, dd, dt, h1, h2, h3, span") && contrast(style.color, back) < 4.5) out.push("faint: " + element.tagName);
    if (element.matches(".legend span") && parseFloat(style.fontSize) < 12) out.push("small: legend");
  }
  if (root.scrollWidth > root.clientWidth) out.push("the page scrolls sideways");
  if (root.clientWidth > 1000)
    for (const element of doc.querySelectorAll(".wide")) if (element.scrollWidth > element.clientWidth + 1) out.push("a table scrolls sideways on a desk");
  return {faults: out, back, width: root.clientWidth, bars: doc.querySelectorAll(".bars rect").length, legends: doc.querySelectorAll(".legend").length};
};
onload = () => {
  const found = [...document.querySelectorAll("iframe")].map(measure);
  document.getElementById("found").textContent = "FOUND" + JSON.stringify(found) + "END";
};
</script></body></html>)js";
}

// What the page measures on the phone and on the desk.
json look(const std::string& program, const std::string& page, bool dark) {
  const TemporaryFolder folder;
  write_text(folder / "harness.html", harness(page));
  const BenchOutcome shown = show(program, folder / "harness.html", dark);
  const auto at = shown.text.find("<pre id=\"found\">FOUND"), end = shown.text.find("END</pre>");
  INFO(shown.text.substr(0, 2000));
  REQUIRE(end != std::string::npos);
  return json::parse(shown.text.substr(at + 21, end - at - 21));
}

// Five sections with bars, rows of every kind, long names and long texts.
dp_bench::Report long_report() {
  using dp_bench::Kind;
  dp_bench::Report report{"scaling", "Scaling of a network", {{"rounds", "2"}}, {}};
  for (int s = 0; s < 5; ++s) {
    dp_bench::Section section{"", "RTX 2080 Ti, NVLink bridge: ResNet18 on CIFAR, global batch 1024", "", {}, {}, {}};
    section.columns = {{"what", "what"},
                       {"devices", "devices", 0},
                       {"ms_per_step", "ms/step", 2},
                       {"ms_q1", "quartile", 2},
                       {"ms_q3", "quartile", 2},
                       {"speed_up", "speed-up", 2},
                       {"efficiency", "% of ideal", 0},
                       {"images_per_second", "img/s", 0},
                       {"seconds_per_epoch", "s/50k images", 2}};
    section.bars = s % 2 == 0 ? dp_bench::Bars{2, 3, 4, true} : dp_bench::Bars{2, {}, {}, true};
    for (int n = 1; n <= 4; ++n)
      for (const Kind kind : {Kind::measured, Kind::modelled, Kind::published, Kind::absent}) {
        dp_bench::Row row{{"plain copies to and from the master x" + std::to_string(n)}, kind, "", {}};
        if (kind == Kind::absent)
          row.note = "bench_step ended: the processor has no instructions for bfloat16";
        else
          row.cells.insert(row.cells.end(),
                           {1.0 * n, 500.72 / n, 480.0 / n, 520.0 / n, 1.0 * n, 100.0, 90190.0, 24.45});
        section.rows.push_back(row);
      }
    for (int i = 0; i < 6; ++i)
      section.text += "Constants: 790.0 TFLOP/s and 4.30 TB/s, of which kernels reach 60 % and 85 %; ring 370 GB/s. ";
    report.sections.push_back(section);
  }
  return report;
}

// On phone and desktop, light and dark.
void check_page(const std::string& program, const std::string& page, std::size_t bars, std::size_t legends) {
  std::vector<std::string> backs;
  for (const bool dark : {false, true}) {
    const json both = look(program, page, dark);
    REQUIRE(both.size() == 2);
    for (int frame = 0; frame < 2; ++frame) {
      const json& found = both.at(frame);
      INFO((dark ? "dark " : "light ") << found.dump());
      CHECK(found.at("faults").empty());
      CHECK(found.at("width") > (frame == 0 ? kPhone : kDesk) - 20);
      CHECK(found.at("bars") >= bars);
      CHECK(found.at("legends") >= legends);
      backs.push_back(found.at("back"));
    }
  }
  CHECK(backs[0] != backs[2]);
}

}  // namespace

TEST_CASE("the page of a run, and of several, cuts nothing off in a browser and has readable contrasts") {
  const std::string program = browser();
  if (program.empty()) DP_SKIP("no chromium is installed");
  const TemporaryFolder temp;
  const dp::DatasetPair data = dp::datasets::synthetic({1, 6, 6}, 10, 320, 64, 1);
  std::vector<std::string> runs;
  for (const float lr : {0.01f, 0.1f, 0.2f}) {
    runs.push_back(temp / ("a_run_with_a_rather_long_name_" + std::to_string(runs.size())));
    dp::TrainerOptions options{.epochs = 3, .batch_size = 16, .optimizer = dp::Sgd{.lr = lr}};
    options.parallel.devices = dp::cpus(2);
    options.output_dir = runs.back();
    options.program = "page_test";
    dp::Trainer(dp::models::mlp({.input = {1, 6, 6}}), data, options).run();
  }
  const std::string page = read_text(runs[0] + "/report.html");
  CHECK(page.find("The most confident errors") != std::string::npos);
  check_page(program, page, 0, 8);
  dp::write_report(runs, temp / "all.html");
  check_page(program, read_text(temp / "all.html"), 0, 10);
}

TEST_CASE("the page in a browser cuts nothing off and has readable contrasts, on phone and desktop, light and dark") {
  const std::string program = browser();
  if (program.empty()) DP_SKIP("no chromium is installed");
  struct Shown {
    std::string arguments;
    std::size_t bars, legends;  // minimum counts
  };
  const Shown all[] = {
      {"step --cpu 2 --model mlp --rounds 2 --steps 3 --variants plan dp1 dp-sharded dp-allreduce ddp", 5, 1},
      {"pipeline --model mlp -b 8 --split-sizes 1,2,8 --rounds 2 --steps 1 --warmup 1 --accumulate", 0, 1},
      {"step --cpu 2 --model mnist_convnet -b 8 --rounds 2 --steps 1", 5, 1}};
  check_page(program, dp_bench::to_html(long_report()), 50, 5);
  std::string page;
  for (const Shown& shown : all) {
    const TemporaryFolder folder;
    const BenchOutcome made = run_bench(shown.arguments + " --html " + (folder / "page.html"));
    INFO(shown.arguments << ": " << made.text);
    REQUIRE(made.code == 0);
    page = read_text(folder / "page.html");
    check_page(program, page, shown.bars, shown.legends);
  }

  page.insert(page.find("<noscript>"), "<div style=\"width:2000px\">too wide</div>");
  CHECK_FALSE(look(program, page, false).at(0).at("faults").empty());
}
