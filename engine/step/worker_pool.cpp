#include "engine/step/worker_pool.h"

#include <pthread.h>

#include <cstdlib>
#include <string>

#include "dp/error.h"
#include "kernels/device/host/memory.h"

namespace dp::engine {
namespace {

bool is_consequence(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const kernels::Aborted&) {
    return true;
  } catch (...) {
    return false;
  }
}

Error as_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::device, "out of host memory");
  } catch (const std::exception& e) {
    return Error(ErrorCode::device, e.what());
  } catch (...) {
    return Error(ErrorCode::device, "an exception of unknown type");
  }
}

// A thread's first allocation maps a heap. This forces it at thread start, so that the constructor can check the
// remaining address space.
void make_own_heap() {
  void* volatile block = std::malloc(1);
  std::free(block);
}

}  // namespace

WorkerPool::WorkerPool(int size) : size_(size), errors_(static_cast<std::size_t>(size)) {
  kernels::require_address_space(0);
  if (size == 1) {
    caller_.emplace();
    return;
  }
  running_.store(size);
  try {
    for (int number = 0; number < size; ++number) threads_.emplace_back([this, number] { serve(number); });
    wait_for_all();
    kernels::require_address_space(0);
  } catch (const Error&) {
    stop();
    throw;
  } catch (const std::exception& error) {
    const std::size_t started = threads_.size();
    stop();
    throw Error(ErrorCode::device, "only " + std::to_string(started) + " of " + std::to_string(size) +
                                       " replica threads could be started (" + error.what() +
                                       "); use fewer replicas, or raise ulimit -u and -v");
  }
}

WorkerPool::~WorkerPool() { stop(); }

void WorkerPool::stop() {
  quit_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void WorkerPool::serve(int number) {
  make_own_heap();
  ::pthread_setname_np(::pthread_self(), ("worker " + std::to_string(number)).c_str());
  finish_one();
  std::uint32_t seen = 0;
  while (true) {
    generation_.wait(seen);
    ++seen;
    if (quit_.load()) return;
    call_guarded(number);
    finish_one();
  }
}

void WorkerPool::finish_one() {
  if (running_.fetch_sub(1) == 1) running_.notify_one();
}

void WorkerPool::wait_for_all() {
  for (int left = running_.load(); left != 0; left = running_.load()) running_.wait(left);
}

void WorkerPool::call_guarded(int number) {
  try {
    call_(self_, number);
  } catch (...) {
    errors_[static_cast<std::size_t>(number)] = std::current_exception();
    abort_.store(true, std::memory_order_release);
  }
}

void WorkerPool::run_all(Call call, void* self) {
  if (failed()) throw kernels::Aborted();
  call_ = call;
  self_ = self;
  if (size_ == 1) {
    call_guarded(0);
  } else {
    running_.store(size_);
    generation_.fetch_add(1);
    generation_.notify_all();
    wait_for_all();
  }
  if (failed()) rethrow();
}

void WorkerPool::rethrow() {
  std::vector<Error> failures;
  for (std::exception_ptr& error : errors_) {
    if (error && !is_consequence(error)) failures.push_back(as_error(error));
    error = nullptr;
  }
  if (failures.empty()) throw kernels::Aborted();
  std::vector<std::string> others;
  for (std::size_t i = 1; i < failures.size(); ++i) others.emplace_back(failures[i].what());
  throw Error(failures.front().code(), failures.front().what(), std::move(others));
}

}  // namespace dp::engine
