#include "kernels/host/inline_stream.h"

#include <algorithm>
#include <chrono>

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
  while (!done()) {
    if (poll())
      spinner.progressed();
    else
      spinner.wait();
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
    now.label = label_;
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
  queued_task.label = label_;
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
  // A call that finds nothing to do yet is waiting, and over in no time; what it takes is not worth telling apart.
  const auto start = std::chrono::steady_clock::now();
  try {
    const bool done = task();
    siblings_.seconds_[task.label] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return done;
  } catch (...) {
    siblings_.fail(std::current_exception());
  }
}

void InlineStream::drop_queue() noexcept {
  siblings_.queued_ -= queued();
  progress_.done.store(issued_, std::memory_order_release);
}

}  // namespace dp::kernels
