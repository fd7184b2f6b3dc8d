#pragma once

#include <cstddef>

namespace dp::test {

// The peak of the bytes allocated by operator new since construction, minus the bytes allocated at construction.
class MemoryPeak {
 public:
  MemoryPeak();
  std::size_t bytes() const;

 private:
  std::size_t start_;
};

}  // namespace dp::test
