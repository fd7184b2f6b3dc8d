// Annotations for the thread sanitizer.
//
// The simulation's locks would order threads that CUDA does not order, so they are hidden from the sanitizer. release()
// and acquire() declare the order that CUDA guarantees.
#pragma once

#include <cstddef>
#include <mutex>

#if defined(DP_THREAD_SANITIZER)
extern "C" {
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void __tsan_read_range(void* address, unsigned long bytes);
void __tsan_write_range(void* address, unsigned long bytes);
}
#endif

namespace dp::simt {

#if defined(DP_THREAD_SANITIZER)
inline constinit thread_local int ignoring_sync = 0;
inline void ignore_sync_begin() {
  ++ignoring_sync;
  AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
}
inline void ignore_sync_end() {
  AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  --ignoring_sync;
}
inline void ignore_accesses_begin() {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
inline void ignore_accesses_end() {
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
inline void acquire(void* token) { __tsan_acquire(token); }
// Also takes effect under a QuietLock.
inline void release(void* token) {
  const int depth = ignoring_sync;
  while (ignoring_sync > 0) ignore_sync_end();
  __tsan_release(token);
  while (ignoring_sync < depth) ignore_sync_begin();
}
inline void announce_read(const void* data, std::size_t bytes) {
  if (data != nullptr && bytes > 0) __tsan_read_range(const_cast<void*>(data), bytes);
}
inline void announce_write(const void* data, std::size_t bytes) {
  if (data != nullptr && bytes > 0) __tsan_write_range(const_cast<void*>(data), bytes);
}
#else
inline void ignore_sync_begin() {}
inline void ignore_sync_end() {}
inline void ignore_accesses_begin() {}
inline void ignore_accesses_end() {}
inline void acquire(void*) {}
inline void release(void*) {}
inline void announce_read(const void*, std::size_t) {}
inline void announce_write(const void*, std::size_t) {}
#endif

// Also hides memory that is allocated and freed under the lock: the sanitizer sees those accesses, but not the lock
// that orders them.
class QuietLock {
 public:
  explicit QuietLock(std::mutex& mutex) {
    ignore_accesses_begin();
    ignore_sync_begin();
    lock_ = std::unique_lock(mutex);
  }
  ~QuietLock() {
    lock_.unlock();
    ignore_sync_end();
    ignore_accesses_end();
  }
  QuietLock(const QuietLock&) = delete;
  QuietLock& operator=(const QuietLock&) = delete;

  std::unique_lock<std::mutex>& get() const { return lock_; }  // for condition variables

 private:
  mutable std::unique_lock<std::mutex> lock_;
};

// Hides the accesses of a kernel or a copy. The memory that they touch has been announced explicitly.
class QuietAccesses {
 public:
  QuietAccesses() { ignore_accesses_begin(); }
  ~QuietAccesses() { ignore_accesses_end(); }
  QuietAccesses(const QuietAccesses&) = delete;
  QuietAccesses& operator=(const QuietAccesses&) = delete;
};

}  // namespace dp::simt
