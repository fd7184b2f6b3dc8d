// Contexts without a backend, ops made from lambdas, and ranks as threads.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "dp/error.h"
#include "kernels/comm/host_communicator.h"
#include "kernels/device/host/host_context.h"

namespace dp::test {

class BareContext final : public kernels::HostContext {
 public:
  explicit BareContext(const kernels::ContextOptions& options = {})
      : HostContext({DeviceKind::reference, 0}, options) {}
  DType compute_type() const override { return DType::f32; }
  kernels::Layout plain_layout(const Shape&, DType) override { return {}; }
  kernels::Layout with_type(const kernels::TensorDesc& tensor, DType) override { return tensor.layout; }
  std::unique_ptr<kernels::Op> make_op(const kernels::OpDesc& desc) override {
    throw Error(ErrorCode::usage, std::string("the test context has no ") + kernels::name_of(desc));
  }
};

class LambdaOp final : public kernels::HostOp {
 public:
  explicit LambdaOp(std::function<void()> work) : work_(std::move(work)) {}
  void execute(std::span<void* const>, void*) override { work_(); }

 private:
  std::function<void()> work_;
};

// A task that becomes ready when another thread sets the flag.
struct Gate {
  const std::atomic<bool>* open;
  bool operator()() const { return open->load(std::memory_order_acquire); }
};
inline void wait_for(kernels::Stream& stream, const std::atomic<bool>& open) {
  static_cast<kernels::HostStream&>(stream).submit(kernels::Task(Gate{&open}));
}

// Sets a flag from another thread after a delay.
class Later {
 public:
  explicit Later(std::atomic<bool>& flag, int milliseconds = 20)
      : thread_([&flag, milliseconds] {
          std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
          flag.store(true, std::memory_order_release);
        }) {}
  ~Later() { thread_.join(); }

 private:
  std::thread thread_;
};

// N ranks with a context each. run() calls `body(rank)` on a thread per rank. The first exception raises the abort flag
// for all ranks; run() rethrows it after all threads have ended.
class RankGroup {
 public:
  explicit RankGroup(int size, kernels::ContextOptions options = {}) {
    options.abort = &abort;
    for (int rank = 0; rank < size; ++rank) {
      options.delay_seed += 1;
      contexts.push_back(std::make_unique<BareContext>(options));
    }
  }
  std::vector<std::unique_ptr<kernels::Communicator>> communicators() {
    std::vector<kernels::Context*> all;
    for (const auto& context : contexts) all.push_back(context.get());
    return kernels::make_host_communicators("host", all);
  }
  template <typename Body>
  void run(Body body) {
    std::vector<std::thread> threads;
    std::exception_ptr first;
    std::atomic<bool> failed{false};
    for (int rank = 0; rank < static_cast<int>(contexts.size()); ++rank)
      threads.emplace_back([&, rank] {
        try {
          contexts[static_cast<std::size_t>(rank)]->bind_thread();
          body(rank);
        } catch (...) {
          if (!failed.exchange(true)) first = std::current_exception();
          abort = true;
        }
      });
    for (std::thread& thread : threads) thread.join();
    if (first) std::rethrow_exception(first);
  }

  kernels::AbortFlag abort{false};
  std::vector<std::unique_ptr<BareContext>> contexts;
};

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace dp::test
