// planted_<build> BUG right|wrong: runs a planted bug in every schedule and prints the findings, one a line:
//   rule: TEXT     an error of the runtime or a report
//   result: TEXT   a wrong result
// planted_<build> all: runs all of them without their bugs.
// planted_<build> BUG untaken: ends without taking the reports.
// The sanitizers and the fault handler end the process.
#include <cstdio>
#include <cstring>

#include "simulated_cuda/planted/bugs.h"
#include "simulated_cuda/rig.h"

namespace {

using namespace dp::simt;
using namespace dp::simt::test;

const char* name(ThreadOrder order) {
  switch (order) {
    case ThreadOrder::forward: return "forward";
    case ThreadOrder::reverse: return "reverse";
    case ThreadOrder::random: break;
  }
  return "random";
}

void run(const PlantedBug& bug, bool planted) {
  for (const Schedule& schedule : schedules()) {
    const FreshSimulation fresh;
    use(schedule);
    try {
      const bool right = bug.run(planted);
      const bool judged = !(planted && bug.by_chance);
      if (!right && judged) std::printf("result: wrong in %s order\n", name(schedule.order));
    } catch (const dp::Error& error) {
      std::printf("rule: %s\n", error.what());
    }
    for (const std::string& report : take_reports()) std::printf("rule: %s\n", report.c_str());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "list") == 0) {
    for (const PlantedBug& bug : planted_bugs()) std::printf("%s|%s\n", bug.name.c_str(), bug.what.c_str());
    return 0;
  }
  if (argc == 2 && std::strcmp(argv[1], "all") == 0) {
    for (const PlantedBug& bug : planted_bugs()) run(bug, false);
    return 0;
  }
  for (const PlantedBug& bug : planted_bugs()) {
    if (argc != 3 || bug.name != argv[1]) continue;
    if (std::strcmp(argv[2], "untaken") == 0) {
      try {
        bug.run(true);
      } catch (const dp::Error&) {
      }
      return 0;
    }
    run(bug, std::strcmp(argv[2], "wrong") == 0);
    return 0;
  }
  std::fprintf(stderr, "usage: %s list | BUG right|wrong\n", argv[0]);
  return 2;
}

const std::vector<PlantedBug>& dp::simt::test::planted_bugs() {
  static const std::vector<PlantedBug> all = [] {
    std::vector<PlantedBug> bugs = planted_kernel_bugs();
    for (const auto& more : {planted_stream_bugs(), planted_memory_bugs(), planted_driver_bugs()})
      bugs.insert(bugs.end(), more.begin(), more.end());
    return bugs;
  }();
  return all;
}
