// Console output as text.
#pragma once

#include <string>
#include <vector>

#include "dp/trainer.h"

namespace dp {

// "Epoch: [0]  [ 10/391]  eta: 0:00:12  lr: 0.1  img/s: 9843  loss: 4.41 (4.52)  acc1: 3.9 (2.8)"
// Values since the last line, and in brackets over the epoch so far.
std::string step_line(const StepReport& report);
std::string eval_line(const Stats& stats);  // "Test: Acc@1 75.610 Acc@5 93.050  loss 0.912"
// Model, replicas and resolved options. Several lines, each with a line end.
std::string start_table(const DataParallel& net, const TrainerOptions& options);
// Seconds of each phase, one line per replica; empty without phases.
std::string phase_table(const std::vector<std::string>& devices, const std::vector<PhaseTimes>& times);
// One row per layer and a total. The floor is "-" if it is not known.
std::string layer_table(const std::string& device, const std::vector<LayerTime>& layers);
std::string summary_text(const RunSummary& summary);

}  // namespace dp
