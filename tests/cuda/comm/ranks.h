// Replicas without the engine: a thread, a context and a communicator each, and device memory with given contents.
#pragma once

#include <algorithm>
#include <barrier>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/device/backend.h"

namespace dp::test {

// Ranks on separate threads, each with a context.
class Ranks {
 public:
  explicit Ranks(const std::vector<int>& devices, const char* communicator = "p2p") {
    kernels::ContextOptions options;
    options.abort = &abort_;
    for (const int device : devices)
      contexts_.push_back(kernels::backend(DeviceKind::cuda).open({DeviceKind::cuda, device}, options));
    std::vector<kernels::Context*> all;
    for (const auto& context : contexts_) all.push_back(context.get());
    handles_ = kernels::backend(DeviceKind::cuda).make_communicators(communicator, all);
  }
  int size() const { return static_cast<int>(contexts_.size()); }
  std::string name() const { return handles_.front()->name(); }
  kernels::Context& context(int rank) { return *contexts_[static_cast<std::size_t>(rank)]; }
  // A barrier for the bodies of run(): returns when all ranks have called it or ended. Allocations, frees and copies of
  // pageable memory may wait for other ranks' devices. So a rank must not make them while another rank runs a
  // collective that it has not called yet.
  void synchronise() { barrier_->arrive_and_wait(); }
  // Runs body(rank, context, communicator) on every rank. Rethrows the first exception.
  template <typename Body>
  void run(const Body& body) {
    barrier_ = std::make_unique<std::barrier<>>(size());
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> failures(contexts_.size());
    for (int rank = 0; rank < size(); ++rank)
      threads.emplace_back([&, rank] {
        const auto me = static_cast<std::size_t>(rank);
        try {
          contexts_[me]->bind_thread();
          body(rank, *contexts_[me], *handles_[me]);
        } catch (...) {
          failures[me] = std::current_exception();
          abort_ = true;
        }
        barrier_->arrive_and_drop();
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& failure : failures)
      if (failure) std::rethrow_exception(failure);
  }

 private:
  kernels::AbortFlag abort_{false};
  std::unique_ptr<std::barrier<>> barrier_;
  std::vector<std::unique_ptr<kernels::Context>> contexts_;
  std::vector<std::unique_ptr<kernels::Communicator>> handles_;
};

// Device memory with given contents, and its download.
template <typename T>
class OnDevice {
 public:
  OnDevice(kernels::Context& context, kernels::Stream& stream, const std::vector<T>& content)
      : stream_(stream),
        count_(content.size()),
        buffer_(context.allocate(std::max<std::size_t>(1, count_ * sizeof(T)))) {
    stream.copy(buffer_->data(), content.data(), count_ * sizeof(T));
  }
  T* data() { return static_cast<T*>(buffer_->data()); }
  std::vector<T> content() {
    std::vector<T> copy(count_);
    stream_.download(copy.data(), buffer_->data(), count_ * sizeof(T));
    return copy;
  }

 private:
  kernels::Stream& stream_;
  std::size_t count_;
  std::unique_ptr<kernels::Buffer> buffer_;
};

}  // namespace dp::test
