// Work that a stream keeps until it can be done: a small function object stored in place, so that queueing it allocates
// nothing.
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
  // Copies `call`. Calling it does what can be done now and returns whether all of it is done; it must not block, and
  // is called again, with the state it left, until it returns true.
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

  std::uint8_t label = 0;        // what its time is counted as
  bool waits_for_event = false;  // does nothing else
  std::uint64_t detail = 0;      // which of its label
  std::int64_t begin = 0;        // traced streams: when it was first tried, of trace_clock(); 0: not yet

 private:
  bool (*invoke_)(void*) = nullptr;
  std::size_t bytes_ = 0;
  alignas(std::max_align_t) unsigned char storage_[kMaxBytes];
};

}  // namespace dp::kernels
