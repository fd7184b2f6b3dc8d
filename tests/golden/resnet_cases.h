// Compares a ResNet with torchvision's. golden_resnet.py wrote the results of torchvision.
#pragma once

#include <string>

#include "dp/data_parallel.h"
#include "dp/models.h"
#include "golden/golden_file.h"
#include "support/training.h"

namespace dp::test {

using MakeResnet = Model (*)(const models::ResnetOptions&);

// Matches CASES of golden_resnet.py.
struct ResnetCase {
  std::string name;
  MakeResnet make;
  models::ResnetOptions options;
  std::int64_t rows;
  std::uint64_t number;  // of its batch
};

// Relative errors, see golden_error(). Errors of running statistics are relative to their change; the files have them
// for ResNet18 only.
struct ResnetErrors {
  double logits = 0, predictions = 0;
  Worst running, gradient;
};

// One step and one prediction. Several replicas use sync batch norm.
ResnetErrors resnet_errors(const GoldenFile& golden, const ResnetCase& which, DataParallelOptions options);
void check_resnet_errors(const ResnetErrors& errors, double gradient, double others = 1e-5);

// Checks the gradients of a fused training step.
void check_fused_resnet(const GoldenFile& golden, const ResnetCase& which, int replicas, int stages = 1);

// Checks the mean and the standard deviation of each parameter's initial values.
void check_resnet_start(const GoldenFile& golden, MakeResnet make, int parameters);

}  // namespace dp::test
