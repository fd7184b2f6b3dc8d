#include "compute_thread.h"

#include <dp/error.h>
#include <nanobind/nanobind.h>
#include <signal.h>
#include <chrono>
#include <set>

namespace nb = nanobind;

namespace dp_python {
namespace {

constexpr auto kTick = std::chrono::milliseconds(50);  // between two looks for signals

template <typename Function>
std::exception_ptr error_of(const Function& function) {
  try {
    function();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

std::set<ClosedAtExit*>& open_objects() {  // guarded by the interpreter lock
  static std::set<ClosedAtExit*> objects;
  return objects;
}

}  // namespace

ClosedAtExit::ClosedAtExit() { open_objects().insert(this); }
ClosedAtExit::~ClosedAtExit() { open_objects().erase(this); }

void close_all() {
  const std::set<ClosedAtExit*> objects = open_objects();  // closing one may destroy others
  for (ClosedAtExit* object : objects)
    if (open_objects().contains(object)) object->close();
}

ComputeThread::ComputeThread() {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const std::exception_ptr error = error_of([&] { thread_ = std::thread([this] { serve(); }); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error) throw dp::Error(dp::ErrorCode::device, "no thread could be started; raise ulimit -u and -v");
}

ComputeThread::~ComputeThread() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ComputeThread::serve() {
  std::unique_lock lock(mutex_);
  serve_until(lock, quit_);
}

void ComputeThread::serve_until(std::unique_lock<std::mutex>& lock, const bool& ended) {
  while (true) {
    changed_.wait(lock, [&] { return ended || work_ != nullptr; });
    if (ended) return;
    Call& call = *std::exchange(work_, nullptr);
    lock.unlock();
    std::exception_ptr error = error_of(*call.function);
    lock.lock();
    call.error = std::move(error);
    call.ended = true;
    changed_.notify_all();
  }
}

void ComputeThread::run(const std::function<void()>& work, std::atomic<int>* stop) {
  Call call{&work};
  std::exception_ptr raised;
  {
    const nb::gil_scoped_release release;
    std::unique_lock lock(mutex_);
    if (depth_ > 0 && caller_ != std::this_thread::get_id())
      throw dp::Error(dp::ErrorCode::usage, "another thread is using this object; use it on one thread at a time");
    caller_ = std::this_thread::get_id();
    ++depth_;
    work_ = &call;
    changed_.notify_all();
    lock.unlock();
    wait(call, stop, raised);
    lock.lock();
    --depth_;
  }
  if (raised) std::rethrow_exception(raised);
  if (call.error) std::rethrow_exception(call.error);
}

void ComputeThread::wait(Call& call, std::atomic<int>* stop, std::exception_ptr& raised) {
  std::unique_lock lock(mutex_);
  while (!call.ended) {
    changed_.wait_for(lock, kTick, [&] { return call.ended || callback_ != nullptr; });
    if (call.ended) return;
    Call* const callback = std::exchange(callback_, nullptr);
    lock.unlock();
    std::exception_ptr error;
    if (callback != nullptr || stop != nullptr) {
      const nb::gil_scoped_acquire acquire;
      if (callback != nullptr) error = error_of(*callback->function);
      // Only the main thread handles signals.
      else if (PyErr_CheckSignals() != 0) {
        std::exception_ptr signalled = error_of([] { nb::raise_python_error(); });
        if (!raised) raised = std::move(signalled);
        stop->store(SIGINT);
      }
    }
    lock.lock();
    if (callback == nullptr) continue;
    callback->error = std::move(error);
    callback->ended = true;
    changed_.notify_all();
  }
}

void ComputeThread::call_back(const std::function<void()>& function) {
  Call call{&function};
  std::unique_lock lock(mutex_);
  callback_ = &call;
  changed_.notify_all();
  serve_until(lock, call.ended);
  lock.unlock();
  if (call.error) std::rethrow_exception(call.error);
}

}  // namespace dp_python
