// Which operation comes after which, whatever happens first by chance: vector clocks with a component for each stream.
//
// The host counts as one: what one of its threads has waited for is before all that any thread enqueues later.
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
  std::uint32_t operation(std::size_t stream, const std::string& what);  // numbers begin at 1
  void recorded(std::size_t stream, const void* event);
  void waits(std::size_t stream, const void* event);
  void host_waited_for_stream(std::size_t stream);
  void host_waited_for_event(const void* event);
  void event_destroyed(const void* event);
  void forget_operations();

  // Whether `earlier` has always ended when `later`, which has not been finished, begins.
  bool ordered(std::uint32_t earlier, std::uint32_t later);
  void finished(std::uint32_t operation);  // its clock is no longer needed
  std::string what(std::uint32_t operation);

 private:
  using Clock = std::vector<std::uint32_t>;  // how far each stream has come; missing components are 0
  struct Operation {
    std::size_t stream;
    std::uint32_t index;  // of its stream's operations
    std::string what;
    Clock clock;
  };
  static void merge(Clock& into, const Clock& from);
  Clock& clock_of(std::size_t stream);

  std::mutex mutex_;
  std::vector<Clock> streams_;
  std::vector<std::size_t> free_;  // components of streams that are gone
  std::unordered_map<const void*, Clock> events_;
  std::deque<Operation> operations_;
  std::uint32_t forgotten_ = 0;
  Clock host_;
};

}  // namespace dp::simt
