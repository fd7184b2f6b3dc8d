#include <algorithm>
#include <atomic>
#include <vector>

#include "simulated_cuda/emulator/detector.h"
#include "simulated_cuda/runtime/quiet_lock.h"
#include "simulated_cuda/streams/stream.h"

namespace dp::simt {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> events;
  std::atomic<bool> released{false}, forgotten{false};
};
Registry& registry() {
  static auto& all = *new Registry;
  return all;
}

}  // namespace

Stream* make_stream(int device, int priority) {
  static std::atomic<unsigned> count{0};
  auto stream = std::make_unique<Stream>(device, priority, ++count);
  const QuietLock lock(registry().mutex);
  registry().streams.push_back(std::move(stream));
  return registry().streams.back().get();
}

Event* make_event(int device, bool timing) {
  const QuietLock lock(registry().mutex);
  registry().events.push_back(std::make_unique<Event>(device, timing));
  return registry().events.back().get();
}

void destroy(Stream& stream) { stream.finish(); }

void destroy(Event& event) {
  event.alive = false;
  if (detector != nullptr) detector->event_destroyed(&event);
}

void wait_for_device(int device) {
  std::vector<Stream*> streams;
  {
    const QuietLock lock(registry().mutex);
    for (const auto& stream : registry().streams)
      if (stream->device() == device && !stream->ended()) streams.push_back(stream.get());
  }
  for (Stream* const stream : streams) {
    stream->wait_until(stream->enqueued());
    if (stream->alive()) stream->observe();
  }
}

bool any_stream_works() {
  const QuietLock lock(registry().mutex);
  return std::any_of(registry().streams.begin(), registry().streams.end(),
                     [](const auto& stream) { return stream->alive() && !stream->reached(stream->enqueued()); });
}
bool streams_are_forgotten() { return registry().forgotten; }
bool stuck_are_released() { return registry().released; }
void release_stuck() { registry().released = true; }

void forget_streams_and_events() {
  const QuietLock lock(registry().mutex);
  registry().forgotten = true;
  release_stuck();
  for (const auto& stream : registry().streams) stream->finish();
  const QuietAccesses quiet;
  registry().streams.clear();
  registry().events.clear();
  registry().released = registry().forgotten = false;
}

std::size_t live_streams() {
  const QuietLock lock(registry().mutex);
  return std::count_if(registry().streams.begin(), registry().streams.end(), [](const auto& s) { return s->alive(); });
}

std::size_t live_urgent_streams() {
  const QuietLock lock(registry().mutex);
  return std::count_if(registry().streams.begin(), registry().streams.end(),
                       [](const auto& s) { return s->alive() && s->priority() == kHighestPriority; });
}

std::size_t live_events() {
  const QuietLock lock(registry().mutex);
  return std::count_if(registry().events.begin(), registry().events.end(), [](const auto& e) { return e->alive; });
}

}  // namespace dp::simt
