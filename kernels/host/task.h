// A task in a stream's queue: a small function object, stored in place so that queueing allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>

namespace dp::kernels {

class Task {
 public:
  static constexpr std::size_t kMaxBytes = 288;

  Task() = default;
  // Copies `call`. Each invocation of the copy does what is possible now, without blocking, and returns whether all
  // work is done. The stream repeats it, with the state it left, until it returns true.
  template <typename Call>
  explicit Task(const Call& call)
      : invoke_([](void* stored) { return (*static_cast<Call*>(stored))(); }), bytes_(sizeof(Call)) {
    static_assert(sizeof(Call) <= kMaxBytes, "the call does not fit in a task");
    static_assert(alignof(Call) <= alignof(std::max_align_t));
    static_assert(std::is_trivially_copyable_v<Call> && std::is_trivially_destructible_v<Call>);
    ::new (static_cast<void*>(storage_)) Call(call);
  }
  Task(const Task& other) { *this = other; }
  Task& operator=(const Task& other) {
    invoke_ = other.invoke_;
    bytes_ = other.bytes_;
    label = other.label;
    waits_for_event = other.waits_for_event;
    detail = other.detail;
    begin = other.begin;
    std::memcpy(storage_, other.storage_, bytes_);
    return *this;
  }

  bool operator()() { return invoke_(storage_); }

  std::uint8_t label = 0;        // label of its time, see Stream::label
  bool waits_for_event = false;  // true: the task only waits for an event
  std::uint64_t detail = 0;      // see Stream::detail
  std::int64_t begin = 0;        // traced streams: trace_clock() at the first attempt; 0: none yet

 private:
  bool (*invoke_)(void*) = nullptr;
  std::size_t bytes_ = 0;
  alignas(std::max_align_t) unsigned char storage_[kMaxBytes];
};

}  // namespace dp::kernels
