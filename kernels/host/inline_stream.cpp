#include "kernels/host/inline_stream.h"

#include <algorithm>

#include "kernels/host/spin.h"

namespace dp::kernels {

bool InlineStreams::poll() {
  if (queued_ == 0) return false;
  if (group_.aborted()) fail(std::make_exception_ptr(Aborted()));
  bool progress = false;
  for (InlineStream* stream : streams_) progress |= stream->advance();
  return progress;
}

template <typename Done>
void InlineStreams::spin_until(Done done) {
  Spinner spinner;
  bool said = false;
  while (!done()) {
    if (poll()) {
      spinner.progressed();
      said = false;
      continue;
    }
    if (!said) say_waiting();
    said = true;
    spinner.wait();
  }
  group_.say_working();
}

// Reports the first blocked task that waits for another replica, not just for an event of another stream.
void InlineStreams::say_waiting() {
  for (InlineStream* const stream : streams_) {
    if (stream->queued() == 0) continue;
    const Task& head = stream->slot(stream->done());
    if (!head.waits_for_event) return group_.say_waiting(head.label, head.detail);
  }
}

void InlineStreams::work_off() {
  group_.rethrow_if_failed();
  spin_until([&] { return queued_ == 0; });
}

void InlineStreams::fail(std::exception_ptr failure) {
  group_.fail(failure);
  for (InlineStream* stream : streams_) stream->drop_queue();
  std::rethrow_exception(failure);
}

InlineStream::InlineStream(StreamGroup& group, InlineStreams& siblings)
    : HostStream(group), siblings_(siblings), queue_(std::make_unique<Task[]>(kQueuedTasks)) {
  siblings_.streams_.push_back(this);
}

InlineStream::~InlineStream() {
  drop_unfinished();
  drop_queue();
  std::erase(siblings_.streams_, this);
}

void InlineStream::submit(const Task& task) {
  group_.rethrow_if_failed();
  siblings_.poll();
  if (queued() == 0) {
    Task now = task;
    tag(now);
    const bool done = attempt(now);
    ++issued_;
    if (done) {
      count_done();
    } else {
      slot(issued_ - 1) = now;
      ++siblings_.queued_;
    }
    return;
  }
  siblings_.spin_until([&] { return queued() < kQueuedTasks; });
  Task& queued_task = slot(issued_++);
  queued_task = task;
  tag(queued_task);
  ++siblings_.queued_;
}

void InlineStream::synchronize() {
  group_.rethrow_if_failed();
  siblings_.poll();
  siblings_.spin_until([&] { return queued() == 0; });
}

void InlineStream::synchronize(Event& event) {
  const auto& recorded = static_cast<const HostEvent&>(event);
  group_.rethrow_if_failed();
  siblings_.spin_until([&] { return recorded.reached(); });
}

bool InlineStream::advance() {
  bool progress = false;
  while (queued() > 0 && attempt(slot(done()))) {
    count_done();
    --siblings_.queued_;
    progress = true;
  }
  return progress;
}

bool InlineStream::attempt(Task& task) {
  // An attempt that has nothing to do yet returns at once. Its time is negligible and counts as work.
  const std::int64_t start = trace_clock();
  try {
    const bool done = task();
    const std::int64_t end = trace_clock();
    siblings_.seconds_[task.label] += static_cast<double>(end - start) * 1e-9;
    if (trace_ == nullptr) return done;
    if (task.begin == 0) task.begin = start;
    if (done && !task.waits_for_event) note(task, end);
    return done;
  } catch (...) {
    siblings_.fail(std::current_exception());
  }
}

void InlineStream::note(const Task& task, std::int64_t end) {
  trace_->add({task.begin, end, task.detail, trace_->take_bytes(), task.label});
}

void InlineStream::drop_queue() noexcept {
  siblings_.queued_ -= queued();
  progress_.done.store(issued_, std::memory_order_release);
}

}  // namespace dp::kernels
