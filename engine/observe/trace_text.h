// A replica's timeline as text in Chrome's trace format (docs/guide/tracing.md).
#pragma once

#include <cstdint>
#include <string>

#include "engine/observe/tracer.h"

namespace dp::engine {

struct TraceText {
  std::string events;        // JSON objects, separated by commas
  std::int64_t steps = 0;    // recorded
  std::int64_t dropped = 0;  // spans that did not fit into a ring or could not be measured
};

// `replica` is the process id and `name` the process name in the file. `zero`: the trace_clock() time of the file's
// origin, in nanoseconds.
TraceText trace_text(const Tracer& tracer, int replica, const std::string& name, std::int64_t zero);
// Begin of the earliest span in trace_clock() time; the largest std::int64_t if there are no spans.
std::int64_t first_moment(const Tracer& tracer);

}  // namespace dp::engine
