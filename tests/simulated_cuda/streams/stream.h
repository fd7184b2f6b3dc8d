// A simulated stream: a thread that executes its work in order, with random delays.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "simulated_cuda/runtime/quiet_lock.h"
#include "simulated_cuda/streams/work.h"

namespace dp::simt {

struct Capture;

class Stream {
 public:
  Stream(int device, int priority, unsigned number);
  ~Stream() { finish(); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Returns the stream's position after this work. Blocks while the queue is full.
  std::uint64_t enqueue(const Work& work);

  // For the host. A wait for a failed device would never end: it is reported, then the call returns.
  void wait_until(std::uint64_t position);
  bool reached(std::uint64_t position);
  std::uint64_t enqueued();
  // Reports to the detectors that the host has waited for all work.
  void observe();
  // Executes the remaining work and ends the thread. Nothing may be enqueued later. Returns early if the stream waits
  // for a failed device.
  void finish();

  int device() const { return device_; }
  int priority() const { return priority_; }
  bool alive() const { return alive_.load(std::memory_order_relaxed); }
  bool ended();              // whether its thread has ended
  std::string name() const;  // "stream 3 of cuda:0"
  std::size_t clock() const { return clock_; }

  // While the stream is captured: the capture, and the nodes and moves that the next work follows.
  std::shared_ptr<Capture> capture() const;
  void capture(std::shared_ptr<Capture> capture);
  std::vector<std::size_t>& heads() { return heads_; }
  std::vector<std::size_t>& last_moves() { return last_moves_; }

 private:
  struct Slot {
    Work work;
    std::uint32_t operation = 0;
  };
  static constexpr std::uint64_t kSlots = 1024;

  void work_loop();
  void run_slot(Slot& slot);
  void maybe_sleep();
  bool has_failed() const;
  template <typename Ready>
  void await(const QuietLock& lock, const Ready& ready);
  // On this stream's thread: waits until `other` has reached `position`. Work that a failed device had not finished
  // never counts as done on other devices.
  void follow(Stream& other, std::uint64_t position);
  enum class Progress { open, done, never };
  Progress progress(std::uint64_t position, bool same_device, int& failed);

  const int device_;
  const int priority_;
  const unsigned number_;
  std::size_t clock_ = 0;          // the race detector's number of the stream
  std::atomic<bool> alive_{true};  // relaxed, so that the thread sanitizer derives no order from it

  mutable std::mutex capture_mutex_;
  std::shared_ptr<Capture> capture_;
  std::vector<std::size_t> heads_, last_moves_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<Slot[]> slots_;
  std::uint64_t enqueued_ = 0, done_ = 0;
  std::uint64_t sound_ = 0;  // the part of `done_` before the device failed
  bool lost_ = false;        // work has been dropped after the failure
  bool dropped_ = false;     // reset() came while it waited for a failed device; its work may refer to freed memory
  int stuck_on_ = -1;        // the failed device that it waits for, directly or indirectly
  bool closing_ = false, ended_ = false;
  std::uint32_t random_;
  std::thread thread_;
};

struct Event {
  Event(int event_device, bool event_timing) : device(event_device), timing(event_timing) {}

  const int device;
  const bool timing;
  bool alive = true;

  std::mutex mutex;
  Stream* stream = nullptr;  // of the latest record
  std::uint64_t position = 0;
  std::chrono::steady_clock::time_point time;
  char token = 0;                         // its address identifies the event
  std::shared_ptr<Capture> capture;       // the capture that contains the latest record
  std::vector<std::size_t> nodes, moves;  // predecessors of the record in that capture
};

// Streams and events stay in memory until reset(): an event may refer to a destroyed stream.
Stream* make_stream(int device, int priority);
Event* make_event(int device, bool timing);
void destroy(Stream& stream);
void destroy(Event& event);
void wait_for_device(int device);
bool any_stream_works();
bool stuck_are_released();
bool streams_are_forgotten();  // by reset(), just now
void release_stuck();
void forget_streams_and_events();
std::size_t live_streams();
std::size_t live_urgent_streams();
inline constexpr int kLowestPriority = 0, kHighestPriority = -5;
std::size_t live_events();

}  // namespace dp::simt
