#include "engine/train/report/predictions_section.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "engine/train/report/chart.h"

namespace dp {
namespace {

constexpr double kBoxWidth = 360;         // units of the view box; text has 11 of them
constexpr std::int64_t kMostLabels = 20;  // classes that get a label on the axes, and numbers in the cells
constexpr std::size_t kShown = 12;        // rows of the table of classes; the others are folded

std::string name_of(const PredictionsRecord& record, std::int64_t index) {
  return record.names.empty() ? std::to_string(index) : record.names[static_cast<std::size_t>(index)];
}

// At most `most` characters, counted in UTF-8.
std::string shortened(const std::string& text, std::size_t most) {
  std::size_t characters = 0, end = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) continue;
    if (++characters == most) end = at;
  }
  return characters <= most ? text : text.substr(0, end) + "…";
}

std::int64_t images_of(const Predictions& found, std::int64_t truth) {
  const auto row = found.counts.begin() + static_cast<std::ptrdiff_t>(truth * found.classes);
  return std::accumulate(row, row + static_cast<std::ptrdiff_t>(found.classes), std::int64_t{0});
}

double share(const Predictions& found, std::int64_t truth, std::int64_t predicted) {
  const std::int64_t images = images_of(found, truth);
  return images == 0 ? 0 : static_cast<double>(found.count(truth, predicted)) / static_cast<double>(images);
}

// Where the matrix stands in the view box.
struct Grid {
  double left, top, cell;
  bool labels, numbers;
  double font;

  explicit Grid(const PredictionsRecord& record) {
    const Predictions& found = record.predictions;
    labels = found.classes <= kMostLabels;
    const bool named = labels && !record.names.empty();
    left = named ? 84 : 34;
    top = named ? 78 : 30;
    cell = (kBoxWidth - left - 1) / static_cast<double>(found.classes);
    const auto most = *std::max_element(found.counts.begin(), found.counts.end());
    constexpr double kSmallest = 7, kDigit = 0.6;  // of the font size
    font = std::min(11.0, (cell - 2) / (kDigit * static_cast<double>(std::to_string(most).size())));
    numbers = labels && font >= kSmallest;
  }
  double x(std::int64_t predicted) const { return left + static_cast<double>(predicted) * cell; }
  double y(std::int64_t truth) const { return top + static_cast<double>(truth) * cell; }
};

std::string axes(const PredictionsRecord& record, const Grid& grid) {
  const std::int64_t classes = record.predictions.classes, every = grid.labels ? 1 : 10;
  const bool named = grid.labels && !record.names.empty();
  std::string out = fmt::format("<text x=\"{:.1f}\" y=\"11\" class=\"middle\">predicted</text>",
                                grid.left + (kBoxWidth - grid.left) / 2);
  out += fmt::format("<text transform=\"translate(11 {:.1f}) rotate(-90)\" class=\"middle\">true</text>",
                     grid.top + (kBoxWidth - grid.left) / 2);
  const double middle = grid.cell / 2 + 3.5;
  for (std::int64_t k = 0; k < classes; k += every) {
    const std::string name = named ? escaped(shortened(name_of(record, k), 10)) : std::to_string(k);
    out +=
        fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"end\">{}</text>", grid.left - 4, grid.y(k) + middle, name);
    out += named ? fmt::format("<text transform=\"translate({:.1f} {:.1f}) rotate(-90)\">{}</text>", grid.x(k) + middle,
                               grid.top - 4, name)
                 : fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"middle\">{}</text>", grid.x(k) + grid.cell / 2,
                               grid.top - 4, name);
  }
  return out;
}

// One path for each shade, or with few classes one for each cell, with a tooltip. Right predictions and errors have a
// scale each: a good model's errors would not be visible on the scale of its right predictions.
std::string cells(const PredictionsRecord& record, const Grid& grid, double most_wrong) {
  constexpr int kShades = 10;
  constexpr double kDark = 0.75;  // from this opacity on, numbers have the colour of the background
  const Predictions& found = record.predictions;
  std::array<std::array<std::string, kShades + 1>, 2> paths;  // [wrong][shade]
  std::string single, numbers;
  for (std::int64_t truth = 0; truth < found.classes; ++truth)
    for (std::int64_t predicted = 0; predicted < found.classes; ++predicted) {
      const std::int64_t count = found.count(truth, predicted);
      if (count == 0) continue;
      const bool wrong = truth != predicted;
      const double part = share(found, truth, predicted) / (wrong ? most_wrong : 1);
      const int shade = std::clamp(static_cast<int>(std::ceil(part * kShades)), 1, kShades);
      const std::string path = fmt::format("M{:.1f} {:.1f}h{:.1f}v{:.1f}h-{:.1f}z", grid.x(predicted), grid.y(truth),
                                           grid.cell, grid.cell, grid.cell);
      if (!grid.labels) {
        paths[wrong][static_cast<std::size_t>(shade)] += path;
        continue;
      }
      single += fmt::format(
          "<path class=\"c{}\" fill-opacity=\"{:.1f}\" d=\"{}\"><title>{} taken for {}: {} ({:.1f} %)</title></path>",
          wrong ? 1 : 0, shade / static_cast<double>(kShades), path, escaped(name_of(record, truth)),
          escaped(name_of(record, predicted)), count, 100 * share(found, truth, predicted));
      if (grid.numbers)
        numbers += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"middle {}\">{}</text>",
                               grid.x(predicted) + grid.cell / 2, grid.y(truth) + grid.cell / 2 + 0.36 * grid.font,
                               shade > kDark * kShades ? "on" : "off", count);
    }
  for (int wrong = 0; wrong < 2; ++wrong)
    for (int shade = 1; shade <= kShades; ++shade)
      if (const std::string& path = paths[static_cast<std::size_t>(wrong)][static_cast<std::size_t>(shade)];
          !path.empty())
        single += fmt::format("<path class=\"c{}\" fill-opacity=\"{:.1f}\" d=\"{}\"/>", wrong,
                              shade / static_cast<double>(kShades), path);
  return single + fmt::format("<g class=\"counts\" font-size=\"{:.1f}\">{}</g>", grid.font, numbers);
}

std::string matrix(const std::string& title, const PredictionsRecord& record) {
  const Predictions& found = record.predictions;
  const Grid grid(record);
  double most_wrong = 0;
  for (std::int64_t truth = 0; truth < found.classes; ++truth)
    for (std::int64_t predicted = 0; predicted < found.classes; ++predicted)
      if (truth != predicted) most_wrong = std::max(most_wrong, share(found, truth, predicted));
  std::string body = fmt::format("<svg viewBox=\"0 0 {} {:.1f}\" role=\"img\" aria-label=\"Confusion matrix\">",
                                 kBoxWidth, grid.top + kBoxWidth - grid.left);
  body += axes(record, grid) + cells(record, grid, most_wrong);
  body += fmt::format("<path class=\"frame\" d=\"M{0:.1f} {1:.1f}h{2:.1f}v{2:.1f}h-{2:.1f}z\"/></svg>", grid.left,
                      grid.top, kBoxWidth - grid.left - 1);
  std::string legend = legend_entry(0, "right; strongest: all images of the class");
  if (most_wrong > 0)
    legend += legend_entry(1, fmt::format("wrong; strongest: {:.1f} % of the class", 100 * most_wrong));
  return figure(title, "images of the test set", body, legend);
}

struct ClassResult {
  std::int64_t index = 0, images = 0, taken_for = 0, taken = 0;  // the most frequent error and its count
  double accuracy = 0;
};

std::vector<ClassResult> worst_first(const Predictions& found) {
  std::vector<ClassResult> classes;
  for (std::int64_t truth = 0; truth < found.classes; ++truth) {
    ClassResult one{.index = truth, .images = images_of(found, truth), .accuracy = share(found, truth, truth)};
    for (std::int64_t predicted = 0; predicted < found.classes; ++predicted)
      if (predicted != truth && found.count(truth, predicted) > one.taken)
        one.taken_for = predicted, one.taken = found.count(truth, predicted);
    if (one.images > 0) classes.push_back(one);
  }
  std::stable_sort(classes.begin(), classes.end(),
                   [](const ClassResult& a, const ClassResult& b) { return a.accuracy < b.accuracy; });
  return classes;
}

std::string class_table(const PredictionsRecord& record) {
  const std::vector<ClassResult> classes = worst_first(record.predictions);
  const std::string head = "<table><tr><th>class</th><th>Acc@1</th><th>images</th><th>mostly taken for</th></tr>\n";
  std::string shown = head, folded = head;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const ClassResult& one = classes[i];
    (i < kShown ? shown : folded) +=
        fmt::format("<tr><td>{}</td><td class=\"number\">{:.1f} %</td><td class=\"number\">{}</td><td>{}</td></tr>\n",
                    escaped(name_of(record, one.index)), 100 * one.accuracy, one.images,
                    one.taken == 0 ? "-" : fmt::format("{} ({})", escaped(name_of(record, one.taken_for)), one.taken));
  }
  std::string out = "<div><h3>Classes, worst first</h3>\n" + shown + "</table>\n";
  if (classes.size() > kShown)
    out += fmt::format("<details><summary>{} further classes</summary>\n", classes.size() - kShown) + folded +
           "</table></details>\n";
  return out + "</div>\n";
}

std::string wrong_images(const PredictionsRecord& record) {
  const Predictions& found = record.predictions;
  if (found.wrong.empty()) return "";
  std::string out =
      "<h3>The most confident errors</h3>\n<p class=\"soft\">The predicted class and its probability, then the "
      "true class.</p>\n<div class=\"wrong\">\n";
  for (std::size_t i = 0; i < found.wrong.size(); ++i) {
    const WrongSample& one = found.wrong[i];
    out += fmt::format(
        "<figure><svg viewBox=\"0 0 1 1\" role=\"img\" aria-label=\"test image {}\"><image width=\"1\" height=\"1\" "
        "href=\"data:image/png;base64,{}\"/></svg><figcaption><b>{}</b> {:.1f} %<br><small>true: {}</small>"
        "</figcaption></figure>\n",
        one.index, record.images[i], escaped(name_of(record, one.predicted)), 100 * one.probability,
        escaped(name_of(record, one.truth)));
  }
  return out + "</div>\n";
}

}  // namespace

std::string predictions_section(const std::vector<RunData>& runs) {
  std::string matrices;
  for (const RunData& run : runs)
    if (run.predictions)
      matrices += matrix(runs.size() > 1 ? "Confusion matrix, " + run.name : "Confusion matrix", *run.predictions);
  const bool evaluated = runs.size() == 1 && !runs.front().evaluations.empty();
  if (matrices.empty() && evaluated)
    return "<p class=\"soft\">There is no confusion matrix: a run records one for up to 100 classes.</p>\n";
  if (matrices.empty()) return "";
  std::string page = "<h2>Predictions</h2>\n";
  if (runs.size() > 1) {
    page += "<div class=\"charts\">\n" + matrices + "</div>\n";
    for (const RunData& run : runs)
      if (run.predictions)
        page += "<details><summary>Classes and errors of " + escaped(run.name) +
                "</summary>\n<div class=\"classes\">\n" + class_table(*run.predictions) + "</div>\n" +
                wrong_images(*run.predictions) + "</details>\n";
    return page;
  }
  const Predictions& found = runs.front().predictions->predictions;
  page += fmt::format("<p class=\"soft\">{} at step {}, {} test images.</p>\n",
                      found.average ? "The moving average of the weights" : "The weights", found.step, found.samples);
  page += "<div class=\"classes\">\n" + matrices + class_table(*runs.front().predictions) + "</div>\n";
  return page + wrong_images(*runs.front().predictions);
}

}  // namespace dp
