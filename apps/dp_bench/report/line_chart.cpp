// Line charts as inline SVG.
#include <algorithm>
#include <cmath>
#include <limits>

#include "html.h"

namespace dp_bench {
namespace {

// Units of the view box. Text has 11 of them: readable where a chart is as wide as a phone.
constexpr double kWidth = 360, kHeight = 220, kLeft = 40, kRight = 10, kTop = 8, kBottom = 24;
constexpr double kLabelSpace = 24;  // between the centres of neighbouring labels of the axis of x

bool drawable(const Line::Point& point) { return point.x > 0 && std::isfinite(point.x) && std::isfinite(point.y); }

std::string text_of(double value) { return shown(Cell(value), 1); }

// 1, 2 or 5 times a power of ten, at most five of them up to `highest`.
double round_step(double highest) {
  const double raw = highest / 5, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * power) return factor * power;
  return 10 * power;
}

// Maps points to the view box.
struct Axes {
  double first = std::numeric_limits<double>::infinity(), last = 0;  // of x
  double highest = 0;                                                // of y

  double x(double value) const {
    const double whole = std::log(last / first);
    return whole > 0 ? kLeft + (kWidth - kRight - kLeft) * std::log(value / first) / whole : (kLeft + kWidth) / 2;
  }
  double y(double value) const { return kHeight - kBottom - (kHeight - kBottom - kTop) * value / highest; }
};

std::string label(double x, double y, const std::string& position, const std::string& text) {
  return "<text x=\"" + text_of(x) + "\" y=\"" + text_of(y) + "\" class=\"" + position + "\">" + text + "</text>";
}

std::string scales(const Axes& axes, std::vector<double> values) {
  std::string out;
  const double step = round_step(axes.highest);
  const int digits = step < 1 ? static_cast<int>(std::ceil(-std::log10(step))) : 0;
  for (double value = 0; value <= axes.highest * (1 + 1e-9); value += step)
    out += "<path class=\"grid\" d=\"M" + text_of(kLeft) + " " + text_of(axes.y(value)) + "H" +
           text_of(kWidth - kRight) + "\"/>" + label(kLeft - 4, axes.y(value) + 4, "end", shown(Cell(value), digits));
  // A label at every x that has room: the last one first, because it is the end of the axis.
  std::ranges::sort(values, std::greater());
  double right = std::numeric_limits<double>::infinity();
  for (const double value : values) {
    if (right - axes.x(value) < kLabelSpace) continue;
    right = axes.x(value);
    out += label(right, kHeight - 6, "middle", shown(Cell(value), 0));
  }
  return out;
}

std::string polyline(const Line& line, const std::string& points) {
  return "<polyline class=\"c" + std::to_string(line.color) + (line.dashed ? " dashed" : "") + "\" points=\"" + points +
         "\"/>";
}

std::string dot(const Line& line, double x, double y) {
  return "<circle class=\"c" + std::to_string(line.color) + "\" cx=\"" + text_of(x) + "\" cy=\"" + text_of(y) +
         "\" r=\"3\"/>";
}

std::string drawn(const Line& line, const Axes& axes) {
  if (std::ranges::none_of(line.points, drawable)) return "";
  std::string points, dots;
  for (const Line::Point& point : line.points) {
    if (!drawable(point)) continue;
    const double y = axes.y(point.y);
    if (line.level)
      return polyline(line, text_of(kLeft) + "," + text_of(y) + " " + text_of(kWidth - kRight) + "," + text_of(y));
    points += (points.empty() ? "" : " ") + text_of(axes.x(point.x)) + "," + text_of(y);
    if (!line.dashed) dots += dot(line, axes.x(point.x), y);
  }
  return polyline(line, points) + dots;
}

std::string legend_of(const Line& line) {
  return "<span><svg class=\"sample\" viewBox=\"0 0 32 12\">" + polyline(line, "0,6 32,6") +
         (line.dashed || line.level ? "" : dot(line, 16, 6)) + "</svg> " + escaped(line.label) + "</span>";
}

}  // namespace

std::string line_chart(const LineChart& chart) {
  Axes axes;
  std::vector<double> values;
  std::string legend, body;
  for (const Line& line : chart.lines) {
    if (!line.label.empty()) legend += legend_of(line);
    for (const Line::Point& point : line.points) {
      if (!drawable(point)) continue;
      axes.highest = std::max(axes.highest, point.y);
      if (line.level) continue;
      axes.first = std::min(axes.first, point.x);
      axes.last = std::max(axes.last, point.x);
      if (std::ranges::find(values, point.x) == values.end()) values.push_back(point.x);
    }
  }
  if (values.empty() || axes.highest <= 0) return "";
  for (const Line& line : chart.lines) body += drawn(line, axes);
  return "<figure><figcaption>" + escaped(chart.y_title) + "</figcaption><svg viewBox=\"0 0 " + shown(Cell(kWidth), 0) +
         " " + shown(Cell(kHeight), 0) + "\" role=\"img\" aria-label=\"" +
         escaped(chart.y_title + " against " + chart.x_title) + "\">" + scales(axes, values) + body +
         "</svg><figcaption class=\"below\">" + escaped(chart.x_title) + "</figcaption><p class=\"legend\">" + legend +
         "</p></figure>\n";
}

}  // namespace dp_bench
