#pragma once

#include <cstddef>

namespace dp::test {

// The most memory that operator new had handed out at once since this was made, less what it had handed out then.
class MemoryPeak {
 public:
  MemoryPeak();
  std::size_t bytes() const;

 private:
  std::size_t start_;
};

}  // namespace dp::test
