// The planted bugs. Each runs correctly or with its bug.
#pragma once

#include <string>
#include <vector>

namespace dp::simt::test {

struct PlantedBug {
  std::string name;
  std::string what;  // for the table
  bool by_chance;    // whether timing decides if the result is wrong
  bool (*run)(
      bool planted);  // returns whether the result was right; other findings are in take_reports() or end the process
};

const std::vector<PlantedBug>& planted_bugs();
std::vector<PlantedBug> planted_kernel_bugs();
std::vector<PlantedBug> planted_stream_bugs();
std::vector<PlantedBug> planted_memory_bugs();
std::vector<PlantedBug> planted_driver_bugs();

}  // namespace dp::simt::test
