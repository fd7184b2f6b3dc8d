// `dp_bench compare`: ResNet18 on images of CIFAR-100's shape, dp against ddp, with and without mixed precision.
#pragma once

#include "report/report.h"
#include "step.h"

namespace dp_bench {

// Ignores `options.network`: the network is ResNet18 on 3x32x32 images with 100 classes.
Report compare_report(StepOptions options, Progress progress);

}  // namespace dp_bench
