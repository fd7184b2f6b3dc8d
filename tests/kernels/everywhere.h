// Runs one test body on every tested kind of device.
#pragma once

#include "kernels/op_rig.h"
#include "support/catch.h"

namespace dp::test {

// Calls check(rig) for each tested device.
template <typename Check>
void everywhere(Check check) {
  for (const DeviceKind kind : tested_kinds()) {
    INFO(to_string(Device{kind, 0}));
    OpRig rig(kind);
    check(rig);
  }
}

}  // namespace dp::test
