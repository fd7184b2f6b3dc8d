// Interface of the race detector. Only race builds have one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace dp::simt {

enum class Access : std::uint8_t { read, write, atomic };

class Detector {
 public:
  // An access by a thread of the running kernel. `code`: the return address.
  virtual void access(const void* address, unsigned bytes, Access kind, unsigned thread, const void* code) = 0;
  virtual void fence(unsigned thread) = 0;
  // An access by the running operation as a whole: a copy or a fill.
  virtual void range(const void* begin, std::size_t bytes, Access kind) = 0;

  // Device or pinned memory.
  virtual void allocated(const void* begin, std::size_t bytes) = 0;
  virtual void freed(const void* begin, std::size_t bytes) = 0;

  virtual void forget() = 0;  // clears all accesses and operations

  // Operations and their order, in the order of the runtime's calls. `stream`: a small number, unique among existing
  // streams. operation() returns the number of the new operation.
  virtual std::size_t stream_created() = 0;
  virtual void stream_destroyed(std::size_t stream) = 0;
  virtual std::uint32_t operation(std::size_t stream, const std::string& what) = 0;
  virtual void recorded(std::size_t stream, const void* event) = 0;
  virtual void waits(std::size_t stream, const void* event) = 0;
  virtual void host_waited_for_stream(std::size_t stream) = 0;
  virtual void host_waited_for_event(const void* event) = 0;
  virtual void event_destroyed(const void* event) = 0;

  // Only one operation runs between begin() and end().
  virtual void begin(std::uint32_t operation) = 0;
  virtual void end() = 0;

 protected:
  ~Detector() = default;
};

extern Detector* detector;  // null: no race detector

}  // namespace dp::simt
