// Figures of an evaluation with targets. For numbers: the mean absolute error, the root of the mean square error, and
// the coefficient of determination R2 (1: exact; 0: as good as the mean of the targets), the mean over the outputs. For
// classes that do not exclude each other (BceWithLogitsLoss, FocalLoss): the F1 score of all decisions at a probability
// of a half, and the mean average precision over the classes.
#pragma once

#include <vector>

#include "dp/data_parallel.h"
#include "dp/trainer.h"

namespace dp {

// What all ranks have evaluated, in rank order; every rank calls this. `outputs`: of a sample.
EvaluatedLogits of_all_ranks(const EvaluatedLogits& own, std::int64_t outputs, ProcessGroup& group);

// mae, rmse and r2, or f1 and map. A figure that is not defined is left out: r2 if no output's targets differ, f1 and
// map without a positive target.
std::vector<Metric> metrics_of(const EvaluatedLogits& evaluated, const OutputLoss& loss);

// Error(usage) unless it has a function, and a name that no field of a record has.
void check_metric(const OwnMetric& metric);

}  // namespace dp
