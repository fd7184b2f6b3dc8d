// The thread on which an object of the engine is made, used and destroyed.
//
// No signal handler may run on a thread that computes, and an object of one replica binds the thread that makes it to a
// core (docs/guide/embedding.md). Python's threads have other work, and its main thread handles signals.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

namespace dp_python {

class ComputeThread {
 public:
  ComputeThread();
  ~ComputeThread();
  ComputeThread(const ComputeThread&) = delete;
  ComputeThread& operator=(const ComputeThread&) = delete;

  // Runs `work` on the thread and waits for its end, without the interpreter lock. Rethrows its exception. Error(usage)
  // while another Python thread waits here. With `stop`: signals are handled meanwhile; if a handler raises, `stop` is
  // set, and the exception is rethrown when `work` has returned.
  void run(const std::function<void()>& work, std::atomic<int>* stop = nullptr);
  // Only `work` calls this. Runs `callback` on the Python thread that waits in run(), with the interpreter lock, and
  // rethrows its exception. `callback` may call run().
  void call_back(const std::function<void()>& callback);

  // The result of `make` on the thread.
  template <typename Make>
  auto get(Make&& make) {
    using Result = std::decay_t<decltype(make())>;
    std::optional<Result> result;
    run([&] { result.emplace(make()); });
    return std::move(*result);
  }

 private:
  struct Call {
    const std::function<void()>* function;
    std::exception_ptr error{};
    bool ended = false;
  };

  void serve();
  void serve_until(std::unique_lock<std::mutex>& lock, const bool& ended);
  void wait(Call& call, std::atomic<int>* stop, std::exception_ptr& raised);

  std::mutex mutex_;
  std::condition_variable changed_;
  Call* work_ = nullptr;      // for the thread
  Call* callback_ = nullptr;  // for the Python thread in run()
  bool quit_ = false;
  int depth_ = 0;  // of run() and call_back()
  std::thread::id caller_{};
  std::thread thread_;
};

// A base class of objects with threads that call Python. At the end of the interpreter these objects are closed early,
// because their threads need the interpreter lock to end, and later no thread can take it.
class ClosedAtExit {
 public:
  ClosedAtExit();
  virtual ~ClosedAtExit();
  ClosedAtExit(const ClosedAtExit&) = delete;
  ClosedAtExit& operator=(const ClosedAtExit&) = delete;
  virtual void close() = 0;
};
void close_all();

// Calls `make` on the thread, and owns the object that it returns. The object is destroyed on the same thread.
template <typename Make>
auto make_on(const std::shared_ptr<ComputeThread>& thread, Make&& make) {
  using Object = std::remove_pointer_t<decltype(make())>;
  Object* object = nullptr;
  thread->run([&] { object = make(); });
  return std::shared_ptr<Object>(object, [thread](Object* made) { thread->run([made] { delete made; }); });
}

}  // namespace dp_python
