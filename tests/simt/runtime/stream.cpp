#include "simt/runtime/stream.h"

#include "simt/emulator/detector.h"
#include "simt/runtime/devices.h"
#include "simt/runtime/fault_handler.h"
#include "simt/runtime/quiet_lock.h"

namespace dp::simt {
namespace {

template <class... F>
struct Overloads : F... {
  using F::operator()...;
};
template <class... F>
Overloads(F...) -> Overloads<F...>;

}  // namespace

Stream::Stream(int device, int priority, unsigned number)
    : device_(device),
      priority_(priority),
      number_(number),
      slots_(new Slot[kSlots]),
      random_((simulation().seed * 2654435761u ^ number * 40503u) | 1) {
  if (detector != nullptr) clock_ = detector->stream_created();
  thread_ = std::thread([this] { work_loop(); });
}

std::string Stream::name() const { return "stream " + std::to_string(number_) + " of " + device_name(device_); }

std::shared_ptr<Capture> Stream::capture() const {
  const QuietLock lock(capture_mutex_);
  return capture_;
}

void Stream::capture(std::shared_ptr<Capture> capture) {
  const QuietLock lock(capture_mutex_);
  capture_ = std::move(capture);
}

std::uint64_t Stream::enqueue(const Work& work) {
  const QuietLock lock(mutex_);
  changed_.wait(lock.get(), [&] { return enqueued_ - done_ < kSlots; });
  Slot& slot = slots_[enqueued_ % kSlots];
  slot.work = work;
  if (detector != nullptr) {
    slot.operation = 0;
    if (const auto* record = std::get_if<RecordWork>(&work)) {
      detector->recorded(clock_, record->event);
    } else if (const auto* wait = std::get_if<WaitWork>(&work)) {
      detector->waits(clock_, wait->event);
    } else {
      slot.operation = detector->operation(clock_, describe(work) + " on " + name());
    }
  }
  release(&slot);
  ++enqueued_;
  changed_.notify_all();
  return enqueued_;
}

void Stream::work_loop() {
  give_thread_a_fault_stack();
  for (;;) {
    Slot* slot;
    {
      const QuietLock lock(mutex_);
      changed_.wait(lock.get(), [&] { return done_ < enqueued_ || closing_; });
      if (done_ == enqueued_) return;
      slot = &slots_[done_ % kSlots];
    }
    acquire(slot);
    run_slot(*slot);
    release(this);
    const QuietLock lock(mutex_);
    ++done_;
    changed_.notify_all();
  }
}

void Stream::run_slot(Slot& slot) {
  maybe_sleep();
  const bool works = dp::simt::device(device_).sticky == cudaSuccess;
  std::visit(Overloads{[](std::monostate) {},
                       [&](KernelWork& work) {
                         if (works) run(work, device_, slot.operation);
                       },
                       [&](CopyWork& work) {
                         if (works) run(work, device_, slot.operation, simulation().delays);
                       },
                       [&](FillWork& work) {
                         if (works) run(work, device_, slot.operation);
                       },
                       [](RecordWork& work) {
                         {
                           const QuietLock lock(work.event->mutex);
                           work.event->time = std::chrono::steady_clock::now();
                         }
                         release(&work.event->token);
                       },
                       [](WaitWork& work) {
                         work.stream->wait_until(work.position);
                         acquire(&work.event->token);
                       },
                       [](CallWork& work) { work.function(work.data); },
                       [&](ForeignWork& work) { work.run(work, device_, slot.operation); }},
             slot.work);
}

// One operation of four starts late.
void Stream::maybe_sleep() {
  random_ = random_ * 1664525u + 1013904223u;
  const unsigned drawn = random_ >> 16;
  if (simulation().delays && drawn % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(drawn / 4 % 128));
}

void Stream::wait_until(std::uint64_t position) {
  const QuietLock lock(mutex_);
  changed_.wait(lock.get(), [&] { return done_ >= position; });
}

bool Stream::reached(std::uint64_t position) {
  const QuietLock lock(mutex_);
  return done_ >= position;
}

std::uint64_t Stream::enqueued() {
  const QuietLock lock(mutex_);
  return enqueued_;
}

void Stream::observe() {
  acquire(this);
  if (detector != nullptr) detector->host_waited_for_stream(clock_);
}

void Stream::finish() {
  if (!alive_) return;
  {
    const QuietLock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  ignore_sync_begin();
  thread_.join();
  ignore_sync_end();
  alive_ = false;
  const QuietAccesses quiet;
  slots_.reset();
  if (detector != nullptr) detector->stream_destroyed(clock_);
}

}  // namespace dp::simt
