// The happens-before order of operations: vector clocks with a component for each stream.
//
// All host threads share one clock: what one of them has waited for is ordered before everything that any thread
// enqueues later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace dp::simt {

class Clocks {
 public:
  std::size_t stream_created();
  void stream_destroyed(std::size_t stream);
  std::uint32_t operation(std::size_t stream, const std::string& what);  // numbers start at 1
  void recorded(std::size_t stream, const void* event);
  void waits(std::size_t stream, const void* event);
  void host_waited_for_stream(std::size_t stream);
  void host_waited_for_event(const void* event);
  void event_destroyed(const void* event);
  void forget_operations();

  // Whether `earlier` always ends before `later` begins. `later` must not be finished.
  bool ordered(std::uint32_t earlier, std::uint32_t later);
  void finished(std::uint32_t operation);  // releases its clock
  std::string what(std::uint32_t operation);

 private:
  using Clock = std::vector<std::uint32_t>;  // progress of each stream; missing components are 0
  struct Operation {
    std::size_t stream;
    std::uint32_t index;  // among its stream's operations
    std::string what;
    Clock clock;
  };
  static void merge(Clock& into, const Clock& from);
  Clock& clock_of(std::size_t stream);

  std::mutex mutex_;
  std::vector<Clock> streams_;
  std::vector<std::size_t> free_;  // components of destroyed streams
  std::unordered_map<const void*, Clock> events_;
  std::deque<Operation> operations_;
  std::uint32_t forgotten_ = 0;
  Clock host_;
};

}  // namespace dp::simt
