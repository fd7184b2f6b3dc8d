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

double golden_tolerance(DeviceKind kind, const std::string& name) {
  struct Group {
    const char* name;
    double cpu, reference;
  };
  static constexpr Group kGroups[] = {
      {"conv2d", 2.5e-6, 3e-15},
      {"linear", 1.2e-6, 5e-16},
      {"relu", 0, 0},
      {"function.hardsigmoid", 1e-6, 5e-8},  // PyTorch computes its derivative with 1.0f / 6.0f
      {"function", 1e-6, 1e-14},
      {"max_pool2d", 5e-7, 0},
      {"avg_pool2d", 1e-6, 2e-15},
      {"adaptive_avg_pool2d", 1e-6, 2e-15},
      {"upsample", 1e-6, 1e-15},
      {"zero_pad2d", 0, 0},
      {"prelu", 2e-6, 1e-14},
      {"softmax", 2e-6, 2e-15},
      {"conv_transpose2d", 2.5e-6, 3e-15},
      {"batch_norm2d", 5e-6, 2e-14},
      {"decoder", 5e-6, 1e-13},
      {"add", 3e-7, 0},
      {"multiply", 1e-6, 1e-15},
      {"concat", 0, 0},
      {"batch_norm", 1.2e-6, 2e-13},
      {"group_norm", 1.2e-6, 2e-13},
      {"norm_add_relu", 6e-7, 2e-15},
      {"block", 5e-6, 1e-14},
      {"cross_entropy", 2.5e-7, 1e-14},
      {"loss", 2.5e-7, 1e-14},
      {"sgd", 7e-7, 2e-15}};
  if (kind == DeviceKind::cuda) return 1e-5;
  for (const Group& group : kGroups)
    if (name == group.name || name.starts_with(std::string(group.name) + "."))
      return kind == DeviceKind::cpu ? group.cpu : group.reference;
  FAIL("no tolerance for " << name);
  return 0;
}

kernels::Window window_of(const GoldenFile& golden, const std::string& prefix) {
  const std::vector<double> sizes = golden.values(prefix + "window").values;
  const auto at = [&](std::size_t i) { return static_cast<int>(sizes[i]); };
  if (sizes.size() == 3) return {at(0), at(1), at(2)};
  return {{at(0), at(1)}, {at(2), at(3)}, {at(4), at(5)}, {at(6), at(7)}, {at(8), at(9)}};
}

}  // namespace dp::test
