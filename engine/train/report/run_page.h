// The files that a run writes for people: report.html, and predictions.json, from which the page shows what is
// confused.
#pragma once

#include <chrono>
#include <optional>

#include "dp/data_parallel.h"
#include "dp/loader.h"
#include "dp/process_group.h"
#include "dp/trainer.h"
#include "engine/train/record/notices.h"
#include "engine/train/record/run_folder.h"
#include "engine/train/report/predictions.h"

namespace dp {

class RunPage {
 public:
  // All arguments must outlive this object. `group`: null without ranks.
  RunPage(RunFolder& folder, Notices& notices, ProcessGroup* group)
      : folder_(folder), notices_(notices), group_(group) {}

  // Evaluations of `test` store their logits from now on, unless they are too large. Collective.
  void store_logits(DataParallel& net, Loader& test, const TrainerOptions& options);
  // Keeps the predictions of the evaluation that has just ended, of `classes` outputs. `average`: it was one of the
  // moving average.
  void take_predictions(const EvaluatedLogits& evaluated, std::int64_t classes, const Dataset& test, std::int64_t step,
                        bool average);
  // Unless it is the last page, it is left out if that would take much of the run's time.
  void write(const Dataset& test, bool last);

 private:
  RunFolder& folder_;
  Notices& notices_;
  ProcessGroup* const group_;
  bool predicts_ = false;                   // whether evaluations give predictions; equal on all ranks
  std::optional<Predictions> predictions_;  // of the last evaluation, until they are written
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace dp
