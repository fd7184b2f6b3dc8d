// What the race detector is told. There is one in race builds only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace dp::simt {

enum class Access : std::uint8_t { read, write, atomic };

class Detector {
 public:
  // By the thread of a running kernel. `code`: where in the program.
  virtual void access(const void* address, unsigned bytes, Access kind, unsigned thread, const void* code) = 0;
  virtual void fence(unsigned thread) = 0;
  // By the running operation as a whole: a copy, a fill.
  virtual void range(const void* begin, std::size_t bytes, Access kind) = 0;

  // Device or pinned memory that begins or ceases to exist.
  virtual void allocated(const void* begin, std::size_t bytes) = 0;
  virtual void freed(const void* begin, std::size_t bytes) = 0;

  virtual void forget() = 0;  // all accesses and operations so far

  // Operations and what orders them, in the order of the calls to the runtime. `stream` is a small number of its own for each
  // stream that exists; an operation is known by the number that is returned.
  virtual std::size_t stream_created() = 0;
  virtual void stream_destroyed(std::size_t stream) = 0;
  virtual std::uint32_t operation(std::size_t stream, const std::string& what) = 0;
  virtual void recorded(std::size_t stream, const void* event) = 0;
  virtual void waits(std::size_t stream, const void* event) = 0;
  virtual void host_waited_for_stream(std::size_t stream) = 0;
  virtual void host_waited_for_event(const void* event) = 0;
  virtual void event_destroyed(const void* event) = 0;

  // The operation that runs between both is the only one that runs.
  virtual void begin(std::uint32_t operation) = 0;
  virtual void end() = 0;

 protected:
  ~Detector() = default;
};

extern Detector* detector;  // null without one

}  // namespace dp::simt
