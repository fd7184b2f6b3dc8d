// A replica's timeline as text in Chrome's trace format (docs/guide/tracing.md).
#pragma once

#include <cstdint>
#include <string>

#include "engine/observe/tracer.h"

namespace dp::engine {

struct TraceText {
  std::string events;        // objects, separated by commas
  std::int64_t steps = 0;    // recorded
  std::int64_t dropped = 0;  // spans, because a ring was full
};

// `replica` becomes the process number and `name` the process's name. `zero`: the time, of trace_clock(), that the file counts from.
TraceText trace_text(const Tracer& tracer, int replica, const std::string& name, std::int64_t zero);
// The first moment of the timeline; the largest number when there is none.
std::int64_t first_moment(const Tracer& tracer);

}  // namespace dp::engine
