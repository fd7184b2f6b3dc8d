// Parses a written timeline.
#pragma once

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace dp::test {

struct Span {
  int process = 0, thread = 0;
  std::string name, category;
  double begin = 0, end = 0;  // microseconds
  std::int64_t step = -1, bucket = -1, bytes = 0;
  bool holds(const Span& other) const { return begin <= other.begin && other.end <= end; }
};

struct Timeline {
  std::vector<Span> spans;
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::string> threads;
  std::int64_t steps = 0, dropped = 0;

  std::vector<Span> of(int process, const std::string& category) const {
    std::vector<Span> found;
    for (const Span& span : spans)
      if (span.process == process && span.category == category) found.push_back(span);
    return found;
  }
  // Spans on thread 0, the replica's own thread; excludes its streams.
  std::vector<Span> phases(int process, const std::string& phase) const {
    std::vector<Span> found;
    for (const Span& span : of(process, phase))
      if (span.thread == 0) found.push_back(span);
    return found;
  }
};

// Throws if the text does not follow docs/guide/tracing.md.
inline Timeline read_timeline(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  Timeline timeline;
  if (json.at("displayTimeUnit") != "ms") throw std::runtime_error("displayTimeUnit");
  timeline.steps = json.at("otherData").at("steps").get<std::int64_t>();
  timeline.dropped = json.at("otherData").at("dropped").get<std::int64_t>();
  for (const auto& event : json.at("traceEvents")) {
    const int process = event.at("pid").get<int>(), thread = event.at("tid").get<int>();
    const auto name = event.at("name").get<std::string>();
    const auto& args = event.at("args");
    if (event.at("ph") == "M") {
      if (name == "process_name") timeline.processes[process] = args.at("name").get<std::string>();
      if (name == "thread_name") timeline.threads[{process, thread}] = args.at("name").get<std::string>();
      continue;
    }
    if (event.at("ph") != "X") throw std::runtime_error("ph");
    Span span{process, thread, name, event.at("cat").get<std::string>(), event.at("ts").get<double>(), 0};
    span.end = span.begin + event.at("dur").get<double>();
    span.step = args.at("step").get<std::int64_t>();
    span.bucket = args.value("bucket", std::int64_t{-1});
    span.bytes = args.value("bytes", std::int64_t{0});
    timeline.spans.push_back(span);
  }
  return timeline;
}

// The bucket sizes in elements, padding included, from a plan's description.
inline std::vector<std::int64_t> bucket_elements(const std::string& plan) {
  std::vector<std::int64_t> elements;
  for (std::size_t at = plan.find("buckets, in"); (at = plan.find('\n', at)) != std::string::npos;) {
    long begin = 0, end = 0;
    if (std::sscanf(plan.c_str() + ++at, " %ld to %ld", &begin, &end) != 2) break;
    elements.push_back(end - begin);
  }
  return elements;
}

}  // namespace dp::test
