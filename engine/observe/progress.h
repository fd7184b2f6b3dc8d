// The phases of a training step, and the progress of a replica's thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace dp::engine {

enum class Phase : std::uint8_t { scatter, forward, loss, backward, reduce, update, broadcast };

constexpr std::array<const char*, 7> kPhaseNames{"scatter", "forward", "loss",     "backward",
                                                 "reduce",  "update",  "broadcast"};
constexpr const char* to_string(Phase phase) { return kPhaseNames[static_cast<std::size_t>(phase)]; }

// Progress of a replica's thread. The thread writes it without locks; the watchdog reads it at any time.
class Progress {
 public:
  void enter(Phase phase) {
    phase_.store(phase, std::memory_order_relaxed);
    advance();
  }
  // `name` must outlive this object.
  void reach_layer(const std::string& name) {
    layer_.store(&name, std::memory_order_release);
    advance();
  }
  // With a pipeline, the item that the stage works on. Otherwise the number of a micro-batch, whose items run together.
  // Messages call both a micro-batch.
  void reach_item(int item) { item_.store(item, std::memory_order_relaxed); }
  void reach_bucket(std::size_t bucket) {
    bucket_.store(static_cast<std::int64_t>(bucket), std::memory_order_relaxed);
    advance();
  }

  void advance() { count_.store(count_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }

  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  Phase phase() const { return phase_.load(std::memory_order_relaxed); }
  const std::string* layer() const { return layer_.load(std::memory_order_acquire); }  // the last; null: none yet
  std::int64_t bucket() const { return bucket_.load(std::memory_order_relaxed); }      // the last; -1: none yet
  int item() const { return item_.load(std::memory_order_relaxed); }                   // the last; -1: none yet

 private:
  std::atomic<std::uint64_t> count_{0};
  std::atomic<Phase> phase_{Phase::scatter};
  std::atomic<const std::string*> layer_{nullptr};
  std::atomic<std::int64_t> bucket_{-1};
  std::atomic<int> item_{-1};
};

}  // namespace dp::engine
