// The planted bugs: each runs right, or with its mistake.
#pragma once

#include <string>
#include <vector>

namespace dp::simt::test {

struct PlantedBug {
  std::string name;
  std::string what;  // for the table
  bool by_chance;    // whether the result is wrong depends on who comes first
  bool (*run)(
      bool planted);  // whether the result was right; what else was found is in take_reports() or ends the process
};

const std::vector<PlantedBug>& planted_bugs();
std::vector<PlantedBug> planted_kernel_bugs();
std::vector<PlantedBug> planted_stream_bugs();
std::vector<PlantedBug> planted_memory_bugs();
std::vector<PlantedBug> planted_driver_bugs();

}  // namespace dp::simt::test
