// `dp_bench scaling`: steps on one device, two, and so on: measured on the devices that are here, modelled on others.
#pragma once

#include "report/report.h"
#include "step.h"

namespace dp_bench {

struct ScalingOptions {
  StepOptions step;     // network, batch, rounds; `replicas` is the most that are measured
  bool measure = true;  // false: the model alone
  int modelled_batch = 1024;
};
Report scaling_report(const ScalingOptions& options, Progress progress);

}  // namespace dp_bench
