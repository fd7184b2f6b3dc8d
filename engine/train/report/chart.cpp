#include "engine/train/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "dp/trainer.h"

namespace dp {
namespace {

// Units of the view box. Text has 11 of them: readable where a chart is as wide as a phone.
constexpr double kWidth = 360, kHeight = 200, kLeft = 46, kRight = 8, kTop = 8, kBottom = 22;
constexpr std::size_t kMostPoints = 300;
constexpr int kColors = 8;

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();

  void include(double value) { low = std::min(low, value), high = std::max(high, value); }
  bool empty() const { return low > high; }
};

Curve reduced(const Curve& curve) {
  if (curve.size() <= kMostPoints) return curve;
  Curve means;
  for (std::size_t i = 0; i < kMostPoints; ++i) {
    const std::size_t begin = i * curve.size() / kMostPoints, end = (i + 1) * curve.size() / kMostPoints;
    Point mean;
    for (std::size_t at = begin; at < end; ++at) mean.x += curve[at].x, mean.y += curve[at].y;
    const auto count = static_cast<double>(end - begin);
    means.push_back({mean.x / count, mean.y / count});
  }
  return means;
}

// 1, 2 or 5 times a power of ten: about `count` of them fit the range.
double round_step(double range, int count) {
  const double raw = range / count, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * power) return factor * power;
  return 10 * power;
}

std::string tick_text(double value) {
  if (value == 0) return "0";
  if (std::abs(value) >= 1e4) return fmt::format("{:.3g}k", value / 1000);
  return fmt::format("{:.4g}", value);
}

// Maps values to the view box.
struct Scale {
  Range range;
  double begin, end;

  double operator()(double value) const {
    return begin + (end - begin) * (value - range.low) / (range.high - range.low);
  }
};

// The axis of a constant curve begins at 0.
Scale scale_of(Range range, double begin, double end) {
  if (range.high - range.low <= 1e-9 * std::max(std::abs(range.low), std::abs(range.high))) {
    range.include(0);
    if (range.low == 0) range.high = range.high > 0 ? 1.25 * range.high : 1;
  }
  return {range, begin, end};
}

std::string ticks(const Scale& x, const Scale& y) {
  std::string out;
  const double x_step = round_step(x.range.high - x.range.low, 5), y_step = round_step(y.range.high - y.range.low, 5);
  const auto on_axis = [](double number, double step) { return std::abs(number) < 1e-9 * step ? 0 : number; };
  for (double at = std::ceil(y.range.low / y_step) * y_step; at <= y.range.high + 1e-9 * y_step; at += y_step)
    out += fmt::format(
        "<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/><text x=\"{:.1f}\" y=\"{:.1f}\" class=\"end\">{}</text>",
        kLeft, y(at), kWidth - kRight, kLeft - 4, y(at) + 4, tick_text(on_axis(at, y_step)));
  for (double at = std::ceil(x.range.low / x_step) * x_step; at <= x.range.high + 1e-9 * x_step; at += x_step) {
    constexpr double kHalfLabel = 14;
    const bool at_end = x(at) + kHalfLabel > kWidth;
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>", at_end ? kWidth : x(at), kHeight - 6,
                       at_end ? "end" : "middle", tick_text(on_axis(at, x_step)));
  }
  return out;
}

std::string drawn(const Series& series, const Scale& x, const Scale& y) {
  const Curve curve = reduced(series.curve);
  const int color = series.color % kColors;
  std::string points, dots;
  for (const Point& point : curve) {
    points += fmt::format("{:.1f},{:.1f} ", x(point.x), y(point.y));
    if (series.dots || curve.size() < 3)
      dots += fmt::format(
          "<circle class=\"c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>step {:.0f}: {:.5g}</title></circle>",
          color, x(point.x), y(point.y), point.x, point.y);
  }
  return fmt::format("<polyline class=\"l{}{}\" points=\"{}\"/>", color, series.dash, points) + dots;
}

// A legend entry with a sample of the curve: its colour, dashes and dots.
std::string legend_of(const Series& series) {
  const int color = series.color % kColors;
  return fmt::format(
      "<span><svg class=\"line\" viewBox=\"0 0 24 12\"><polyline class=\"l{}{}\" points=\"0,6 24,6\"/>{}</svg> "
      "{}</span>",
      color, series.dash, series.dots ? fmt::format("<circle class=\"c{}\" cx=\"12\" cy=\"6\" r=\"3\"/>", color) : "",
      escaped(series.label));
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  return out;
}

std::string legend_entry(int color, const std::string& label) {
  return fmt::format(
      "<span><svg viewBox=\"0 0 12 12\"><rect class=\"c{}\" width=\"12\" height=\"12\"/></svg> {}</span>",
      color % kColors, escaped(label));
}

std::string figure(const std::string& title, const std::string& unit, const std::string& body,
                   const std::string& legend) {
  return "<figure><figcaption><b>" + escaped(title) + "</b>" +
         (unit.empty() ? "" : " <small>" + escaped(unit) + "</small>") + "</figcaption>" + body +
         "<p class=\"legend\">" + legend + "</p></figure>\n";
}

std::string line_chart(const std::string& title, const std::string& unit, const std::vector<Series>& series) {
  Range across, up;
  std::string legend;
  for (const Series& one : series) {
    for (const Point& point : one.curve) across.include(point.x), up.include(point.y);
    if (!one.curve.empty()) legend += legend_of(one);
  }
  if (across.empty()) return "";
  const Scale x = scale_of(across, kLeft, kWidth - kRight), y = scale_of(up, kHeight - kBottom, kTop);
  std::string body =
      fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">", kWidth, kHeight, escaped(title));
  body += ticks(x, y);
  for (const Series& one : series)
    if (!one.curve.empty()) body += drawn(one, x, y);
  return figure(title, unit, body + "</svg>", legend);
}

std::string bar_chart(const std::string& title, const std::string& unit, const std::vector<Bar>& bars) {
  constexpr double kRow = 34, kBar = 14;
  double most = 0;
  std::vector<std::string> names;
  for (const Bar& bar : bars) {
    double sum = 0;
    for (const auto& [name, value] : bar.parts) {
      sum += value;
      if (value > 0 && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    most = std::max(most, sum);
  }
  if (most <= 0) return "";
  const auto height = kRow * static_cast<double>(bars.size()) + 4;
  std::string body =
      fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">", kWidth, height, escaped(title));
  double top = 0;
  for (const Bar& bar : bars) {
    double at = 0, sum = 0;
    for (const auto& [name, value] : bar.parts) {
      const auto color = std::find(names.begin(), names.end(), name) - names.begin();
      const double width = value / most * kWidth;
      if (value > 0)
        body += fmt::format(
            "<rect class=\"c{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\"><title>{}: "
            "{:.3g}</title></rect>",
            color % kColors, at, top + 16, width, kBar, escaped(name), value);
      at += width, sum += value;
    }
    body += fmt::format("<text x=\"0\" y=\"{:.1f}\">{}</text><text x=\"{}\" y=\"{:.1f}\" class=\"end\">{:.4g}</text>",
                        top + 12, escaped(bar.label), kWidth, top + 12, sum);
    top += kRow;
  }
  std::string legend;
  for (std::size_t i = 0; i < names.size(); ++i) legend += legend_entry(static_cast<int>(i), names[i]);
  return figure(title, unit, body + "</svg>", legend);
}

}  // namespace dp
