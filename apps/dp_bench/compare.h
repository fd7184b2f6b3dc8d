// `dp_bench compare`: ResNet18 on images of CIFAR-100's shape, one process against several, with and without mixed precision.
#pragma once

#include "report/report.h"
#include "step.h"

namespace dp_bench {

// `options.network` is ResNet18 on 3x32x32 with 100 classes, whatever it says.
Report compare_report(StepOptions options, Progress progress);

}  // namespace dp_bench
