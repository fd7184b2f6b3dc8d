// `dp_bench scaling`: steps on 1, 2, ... devices, measured on this host's devices and modelled for others.
#pragma once

#include "report/report.h"
#include "step.h"

namespace dp_bench {

struct ScalingOptions {
  StepOptions step;     // network, batch, rounds; `replicas`: the largest measured number
  bool measure = true;  // false: only the model
  int modelled_batch = 1024;
};
Report scaling_report(const ScalingOptions& options, Progress progress);

}  // namespace dp_bench
