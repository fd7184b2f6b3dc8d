#include "golden/golden_cases.h"

#include "support/catch.h"

namespace dp::test {

void for_each_case(const GoldenFile& golden, const std::string& group, int expected,
                   const std::function<void(DeviceKind, const std::string&)>& check) {
  const auto prefix = [&](int i) { return group + "." + std::to_string(i) + "."; };
  int cases = 0;
  for (; golden.has_any(prefix(cases)); ++cases)
    for (const DeviceKind kind : tested_kinds()) {
      INFO(prefix(cases) << " on " << to_string(Device{kind, 0}));
      check(kind, prefix(cases));
    }
  CHECK(cases == expected);
}

void for_each_case(const GoldenFile& golden, const std::string& group, int expected,
                   const std::function<void(OpRig&, const std::string&)>& check) {
  for_each_case(golden, group, expected, [&](DeviceKind kind, const std::string& prefix) {
    OpRig rig(kind);
    check(rig, prefix);
  });
}

kernels::Window window_of(const GoldenFile& golden, const std::string& prefix) {
  const std::vector<double> sizes = golden.values(prefix + "window").values;
  return {static_cast<int>(sizes[0]), static_cast<int>(sizes[1]), static_cast<int>(sizes[2])};
}

}  // namespace dp::test
