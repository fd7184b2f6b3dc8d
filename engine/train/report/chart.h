// Charts as inline SVG.
#pragma once

#include <string>
#include <vector>

#include "engine/train/report/run_data.h"

namespace dp {

std::string escaped(const std::string& text);  // for HTML: one line, as in messages

// The parts of a chart: `body` is SVG, `legend` the entries one after another. `color` as in Series.
std::string legend_entry(int color, const std::string& label);
std::string figure(const std::string& title, const std::string& unit, const std::string& body,
                   const std::string& legend);

// A line, or dots for few points. `color`: number of a class of the page's style, c0 to c7.
struct Series {
  std::string label;
  Curve curve;
  int color = 0;
  bool dots = false;
  const char* dash = "";  // or " dashed", " dotted": classes of the page's style
};

// Axes with round numbers, and the series; empty if no series has a point. Long curves are reduced to means.
std::string line_chart(const std::string& title, const std::string& unit, const std::vector<Series>& series);

// Horizontal bars of stacked parts, such as the phases of replicas. Parts have the colors c0, c1, ... in order.
struct Bar {
  std::string label;
  std::vector<std::pair<std::string, double>> parts;
};
std::string bar_chart(const std::string& title, const std::string& unit, const std::vector<Bar>& bars);

}  // namespace dp
