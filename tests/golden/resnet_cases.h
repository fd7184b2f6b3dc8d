// Compares a residual network with torchvision's. golden_resnet.py wrote the results of torchvision.
#pragma once

#include <string>

#include "dp/data_parallel.h"
#include "dp/model.h"
#include "golden/golden_file.h"
#include "support/training.h"

namespace dp::test {

// Matches CASES of golden_resnet.py.
struct ResnetCase {
  std::string name;
  Model model;
  std::int64_t rows;
  std::uint64_t number;  // of its batch
};

// Relative errors, see golden_error(). Errors of running statistics are relative to their change; the files have them
// for ResNet18 and the networks of golden_models.py.
struct ResnetErrors {
  double logits = 0, predictions = 0;
  Worst running, gradient;
};

// One step and one prediction, without dropout. Several replicas use sync batch norm.
ResnetErrors resnet_errors(const GoldenFile& golden, const ResnetCase& which, DataParallelOptions options);
void check_resnet_errors(const ResnetErrors& errors, double gradient, double others = 1e-5);

// Checks the gradients of a fused training step.
void check_fused_resnet(const GoldenFile& golden, const ResnetCase& which, int replicas, int stages = 1,
                        double gradient = 1e-5);

// Checks the mean and the standard deviation of each parameter's initial values. The model has 1000 classes.
void check_resnet_start(const GoldenFile& golden, const Model& model, int parameters);

}  // namespace dp::test
