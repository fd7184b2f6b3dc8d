// The phases of a training step, and the progress of a replica's thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/device/trace_ring.h"

namespace dp::engine {

enum class Phase : std::uint8_t { scatter, forward, loss, backward, reduce, update, broadcast };

constexpr std::array<const char*, 7> kPhaseNames{"scatter", "forward", "loss",     "backward",
                                                 "reduce",  "update",  "broadcast"};
constexpr const char* to_string(Phase phase) { return kPhaseNames[static_cast<std::size_t>(phase)]; }

// An operation or a transfer that a replica's thread began.
struct Begun {
  std::int64_t at = 0;         // trace_clock()
  std::int64_t step = 0;       // of training
  std::int64_t bytes = 0;      // read and written, or transferred. 0: unknown
  std::int64_t bucket = -1;    // -1: not about a bucket
  const char* name = nullptr;  // of the layer and its op, or of the transfer
  Phase phase = Phase::scatter;
};

// Progress of a replica's thread. The thread writes it without locks. The watchdog and the record of a crash read it at
// any time.
class Progress {
 public:
  static constexpr std::size_t kRecent = 64;

  void begin_step(std::int64_t step) { step_ = step; }
  void enter(Phase phase) {
    phase_.store(phase, std::memory_order_relaxed);
    advance();
  }
  // `name` must outlive this object.
  void reach_layer(const std::string& name, std::int64_t bytes) {
    layer_.store(&name, std::memory_order_release);
    remember(name.c_str(), -1, bytes);
    advance();
  }
  // With a pipeline, the item that the stage works on. Otherwise the number of a micro-batch, whose items run together.
  // Messages call both a micro-batch.
  void reach_item(int item) { item_.store(item, std::memory_order_relaxed); }
  void reach_bucket(std::size_t bucket, std::int64_t bytes) {
    bucket_.store(static_cast<std::int64_t>(bucket), std::memory_order_relaxed);
    remember(to_string(phase()), static_cast<std::int64_t>(bucket), bytes);
    advance();
  }
  void reach_transfer(const char* name, std::int64_t bytes) { remember(name, -1, bytes); }

  void advance() { count_.store(count_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }

  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  Phase phase() const { return phase_.load(std::memory_order_relaxed); }
  const std::string* layer() const { return layer_.load(std::memory_order_acquire); }  // the last; null: none yet
  std::int64_t bucket() const { return bucket_.load(std::memory_order_relaxed); }      // the last; -1: none yet
  int item() const { return item_.load(std::memory_order_relaxed); }                   // the last; -1: none yet

  std::size_t begun() const { return begun_.load(std::memory_order_acquire); }  // operations and transfers so far
  // One of the last kRecent. If the thread runs meanwhile, it may be replaced by a newer one.
  Begun begun(std::size_t number) const {
    const Slot& slot = recent_[number % kRecent];
    return {slot.at.load(std::memory_order_relaxed),    slot.step.load(std::memory_order_relaxed),
            slot.bytes.load(std::memory_order_relaxed), slot.bucket.load(std::memory_order_relaxed),
            slot.name.load(std::memory_order_relaxed),  slot.phase.load(std::memory_order_relaxed)};
  }

 private:
  struct Slot {
    std::atomic<std::int64_t> at, step, bytes, bucket;
    std::atomic<const char*> name;
    std::atomic<Phase> phase;
  };

  void remember(const char* name, std::int64_t bucket, std::int64_t bytes) {
    const std::size_t begun = begun_.load(std::memory_order_relaxed);
    Slot& slot = recent_[begun % kRecent];
    slot.at.store(kernels::trace_clock(), std::memory_order_relaxed);
    slot.step.store(step_, std::memory_order_relaxed);
    slot.bytes.store(bytes, std::memory_order_relaxed);
    slot.bucket.store(bucket, std::memory_order_relaxed);
    slot.name.store(name, std::memory_order_relaxed);
    slot.phase.store(phase(), std::memory_order_relaxed);
    begun_.store(begun + 1, std::memory_order_release);
  }

  std::atomic<std::uint64_t> count_{0};
  std::atomic<Phase> phase_{Phase::scatter};
  std::atomic<const std::string*> layer_{nullptr};
  std::atomic<std::int64_t> bucket_{-1};
  std::atomic<int> item_{-1};
  std::int64_t step_ = 0;
  std::array<Slot, kRecent> recent_{};
  std::atomic<std::size_t> begun_{0};
};

}  // namespace dp::engine
