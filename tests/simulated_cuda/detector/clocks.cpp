#include "simulated_cuda/detector/clocks.h"

#include <algorithm>

namespace dp::simt {

void Clocks::merge(Clock& into, const Clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

Clocks::Clock& Clocks::clock_of(std::size_t stream) {
  Clock& clock = streams_[stream];
  if (clock.size() <= stream) clock.resize(stream + 1);
  return clock;
}

std::size_t Clocks::stream_created() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    streams_.emplace_back();
    return streams_.size() - 1;
  }
  // Reuses a component. The new stream is ordered after the previous stream of the component, but after no other
  // stream.
  const std::size_t stream = free_.back();
  free_.pop_back();
  const std::uint32_t reached = clock_of(stream)[stream];
  streams_[stream].clear();
  clock_of(stream)[stream] = reached;
  return stream;
}

void Clocks::stream_destroyed(std::size_t stream) {
  const std::lock_guard lock(mutex_);
  free_.insert(free_.begin(), stream);
}

std::uint32_t Clocks::operation(std::size_t stream, const std::string& what) {
  const std::lock_guard lock(mutex_);
  Clock& clock = clock_of(stream);
  merge(clock, host_);
  operations_.push_back({stream, ++clock[stream], what, clock});
  return forgotten_ + static_cast<std::uint32_t>(operations_.size());
}

void Clocks::recorded(std::size_t stream, const void* event) {
  const std::lock_guard lock(mutex_);
  merge(clock_of(stream), host_);
  events_[event] = clock_of(stream);
}

void Clocks::waits(std::size_t stream, const void* event) {
  const std::lock_guard lock(mutex_);
  if (const auto at = events_.find(event); at != events_.end()) merge(clock_of(stream), at->second);
}

void Clocks::host_waited_for_stream(std::size_t stream) {
  const std::lock_guard lock(mutex_);
  merge(host_, clock_of(stream));
}

void Clocks::host_waited_for_event(const void* event) {
  const std::lock_guard lock(mutex_);
  if (const auto at = events_.find(event); at != events_.end()) merge(host_, at->second);
}

void Clocks::event_destroyed(const void* event) {
  const std::lock_guard lock(mutex_);
  events_.erase(event);
}

void Clocks::forget_operations() {
  const std::lock_guard lock(mutex_);
  forgotten_ += static_cast<std::uint32_t>(operations_.size());
  operations_.clear();
}

bool Clocks::ordered(std::uint32_t earlier, std::uint32_t later) {
  const std::lock_guard lock(mutex_);
  if (earlier <= forgotten_) return true;
  const Operation& before = operations_[earlier - forgotten_ - 1];
  const Clock& clock = operations_[later - forgotten_ - 1].clock;
  return before.stream < clock.size() && clock[before.stream] >= before.index;
}

void Clocks::finished(std::uint32_t operation) {
  const std::lock_guard lock(mutex_);
  if (operation > forgotten_) operations_[operation - forgotten_ - 1].clock = Clock();
}

std::string Clocks::what(std::uint32_t operation) {
  const std::lock_guard lock(mutex_);
  return operation > forgotten_ ? operations_[operation - forgotten_ - 1].what : "an operation";
}

}  // namespace dp::simt
