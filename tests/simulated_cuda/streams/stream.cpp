#include "simulated_cuda/streams/stream.h"

#include <atomic>

#include "simulated_cuda/emulator/detector.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/runtime/fault_handler.h"
#include "simulated_cuda/runtime/quiet_lock.h"

namespace dp::simt {
namespace {

template <class... F>
struct Overloads : F... {
  using F::operator()...;
};
template <class... F>
Overloads(F...) -> Overloads<F...>;

constexpr std::chrono::milliseconds kLook{5};  // poll interval for changes that no condition variable signals

// Whether fault injection makes this kernel fail. All streams of the device share the countdown.
bool is_to_fail(int device) {
  FailingKernel& failing = simulation().failing_kernel;
  if (failing.device != device) return false;
  const std::atomic_ref number(failing.number);
  int left = number;
  while (left > 0 && !number.compare_exchange_weak(left, left - 1)) {
  }
  return left == 1;
}

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

// Waits on the host. Reports a wait for a failed device, which would never end, and then continues.
template <typename Ready>
void Stream::await(const QuietLock& lock, const Ready& ready) {
  for (;;) {
    changed_.wait(lock.get(), [&] { return ready() || (stuck_on_ >= 0 && !stuck_are_released()); });
    if (ready()) return;
    report("the host waits for " + name() + ", which waits for " + device_name(stuck_on_) +
           ": that has failed, so both wait for ever");
    release_stuck();
  }
}

std::uint64_t Stream::enqueue(const Work& work) {
  const QuietLock lock(mutex_);
  await(lock, [&] { return enqueued_ - done_ < kSlots; });
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
      if (done_ == enqueued_) {
        ended_ = true;
        changed_.notify_all();
        return;
      }
      slot = &slots_[done_ % kSlots];
    }
    acquire(slot);
    run_slot(*slot);
    release(this);
    const QuietLock lock(mutex_);
    ++done_;
    lost_ = lost_ || has_failed();
    if (!lost_) sound_ = done_;
    changed_.notify_all();
  }
}

bool Stream::has_failed() const { return dp::simt::device(device_).sticky != cudaSuccess; }

void Stream::run_slot(Slot& slot) {
  maybe_sleep();
  if (std::holds_alternative<KernelWork>(slot.work) && is_to_fail(device_))
    dp::simt::device(device_).sticky = cudaErrorIllegalAddress;
  const bool works = !has_failed() && !dropped_;
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
                       [&](WaitWork& work) {
                         follow(*work.stream, work.position);
                         acquire(&work.event->token);
                       },
                       [](CallWork& work) { work.function(work.data); },
                       [&](ForeignWork& work) {
                         if (works)
                           work.run(work, device_, slot.operation);
                         else if (work.dropped != nullptr && !dropped_)
                           work.dropped(work);
                       }},
             slot.work);
}

// One operation in four starts late.
void Stream::maybe_sleep() {
  random_ = random_ * 1664525u + 1013904223u;
  const unsigned drawn = random_ >> 16;
  if (simulation().delays && drawn % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(drawn / 4 % 128));
}

Stream::Progress Stream::progress(std::uint64_t position, bool same_device, int& failed) {
  const QuietLock lock(mutex_);
  const auto done = [&] { return (same_device ? done_ : sound_) >= position; };
  changed_.wait_for(lock.get(), kLook, [&] { return done() || stuck_on_ >= 0 || (lost_ && !same_device); });
  if (done()) return Progress::done;
  if (stuck_on_ >= 0) failed = stuck_on_;
  if (lost_ && !same_device) failed = device_;
  return failed >= 0 ? Progress::never : Progress::open;
}

void Stream::follow(Stream& other, std::uint64_t position) {
  for (int failed = -1;; failed = -1) {
    const Progress progress = other.progress(position, other.device_ == device_, failed);
    if (progress == Progress::done || has_failed()) break;
    const QuietLock lock(mutex_);
    if (progress == Progress::open) continue;
    stuck_on_ = failed;
    changed_.notify_all();
    changed_.wait_for(lock.get(), kLook, [] { return false; });
    if (!stuck_are_released()) continue;
    dropped_ = streams_are_forgotten();
    break;
  }
  const QuietLock lock(mutex_);
  stuck_on_ = -1;
}

void Stream::wait_until(std::uint64_t position) {
  const QuietLock lock(mutex_);
  await(lock, [&] { return done_ >= position; });
}

bool Stream::ended() {
  const QuietLock lock(mutex_);
  return ended_;
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
  if (!thread_.joinable()) return;
  {
    const QuietLock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    alive_.store(false, std::memory_order_relaxed);
    changed_.wait(lock.get(), [&] { return ended_ || (stuck_on_ >= 0 && !stuck_are_released()); });
    if (!ended_) return;
  }
  ignore_sync_begin();
  thread_.join();
  ignore_sync_end();
  const QuietAccesses quiet;
  slots_.reset();
  if (detector != nullptr) detector->stream_destroyed(clock_);
}

}  // namespace dp::simt
