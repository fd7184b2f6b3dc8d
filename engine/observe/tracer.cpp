#include "engine/observe/tracer.h"

#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>

namespace dp::engine {

void Tracer::begin_step(std::int64_t number) {
  record(records_next());
  ++seen_;
  thread.step = compute.step = communication.step = number;
  step_begin_ = kernels::trace_clock();
  phase_begin_ = 0;
}

void Tracer::end_phase(std::int64_t now) {
  if (phase_begin_ != 0) thread.add({phase_begin_, now, 0, 0, static_cast<std::uint8_t>(phase_)});
}

void Tracer::enter(Phase phase) {
  if (!thread.recording) return;
  const std::int64_t now = kernels::trace_clock();
  end_phase(now);
  phase_ = phase;
  phase_begin_ = now;
}

void Tracer::end_step() {
  if (!thread.recording) return;
  const std::int64_t now = kernels::trace_clock();
  end_phase(now);
  thread.add({step_begin_, now, 0, 0, kStep});
  record(false);
}

namespace {

using kernels::TraceRing;
using kernels::TraceSpan;

enum Thread { kThread, kCompute, kCommunication };
constexpr const char* kThreads[] = {"steps and phases", "compute", "communication"};

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class Writer {
 public:
  Writer(const Tracer& tracer, int replica, std::int64_t zero) : replica_(replica), zero_(zero) {
    for (std::size_t i = 0; i < tracer.thread.size(); ++i)
      if (tracer.thread.span(i).label == Tracer::kStep) ++text_.steps;
  }

  void name(const char* what, int thread, const std::string& name) {
    event(fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":{}}}}})", what, replica_, thread,
                      json_text(name)));
  }

  void spans(const TraceRing& ring, Thread thread) {
    name("thread_name", thread, kThreads[thread]);
    event(fmt::format(R"({{"ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})",
                      replica_, static_cast<int>(thread), static_cast<int>(thread)));
    text_.dropped += static_cast<std::int64_t>(ring.dropped());
    for (std::size_t i = 0; i < ring.size(); ++i) span(ring.span(i), thread);
  }

  TraceText take() { return std::move(text_); }

 private:
  void event(const std::string& json) {
    if (!text_.events.empty()) text_.events += ",\n";
    text_.events += json;
  }

  void span(const TraceSpan& span, Thread thread) {
    const bool is_step = thread == kThread && span.label == Tracer::kStep;
    const bool in_phase = span.label <= static_cast<std::uint8_t>(Phase::broadcast);
    const std::string phase = is_step ? "step" : in_phase ? to_string(static_cast<Phase>(span.label)) : "upload";
    std::string name = phase, args;
    const std::int64_t bucket = is_step ? -1 : bucket_of(span.detail);
    if (is_step) {
      name += fmt::format(" {}", span.step);
    } else if (bucket >= 0) {
      name += fmt::format(" bucket {}", bucket);
      args += fmt::format(R"(,"bucket":{})", bucket);
    } else if (const int item = item_of(span.detail); item >= 0 && thread == kCompute) {
      name += " hand-over";
      args += fmt::format(R"(,"micro_batch":{})", item);
    } else if (const std::string* layer = layer_of(span.detail); layer != nullptr && thread == kCompute) {
      name = *layer;
    }
    if (span.bytes > 0) args += fmt::format(R"(,"bytes":{})", span.bytes);
    event(fmt::format(
        R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"step":{}{}}}}})",
        json_text(name), phase, replica_, static_cast<int>(thread), static_cast<double>(span.begin - zero_) * 1e-3,
        static_cast<double>(span.end - span.begin) * 1e-3, span.step, args));
  }

  const int replica_;
  const std::int64_t zero_;
  TraceText text_;
};

}  // namespace

std::int64_t first_moment(const Tracer& tracer) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const TraceRing* ring : {&tracer.thread, &tracer.compute, &tracer.communication})
    for (std::size_t i = 0; i < ring->size(); ++i) first = std::min(first, ring->span(i).begin);
  return first;
}

TraceText trace_text(const Tracer& tracer, int replica, const std::string& name, std::int64_t zero) {
  Writer writer(tracer, replica, zero);
  writer.name("process_name", 0, name);
  writer.spans(tracer.thread, kThread);
  writer.spans(tracer.compute, kCompute);
  writer.spans(tracer.communication, kCommunication);
  return writer.take();
}

}  // namespace dp::engine
