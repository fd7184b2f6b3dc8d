// Console output as text.
#pragma once

#include <string>
#include <vector>

#include "dp/trainer.h"

namespace dp {

// Columns of a terminal; 0: no limit.
using Width = int;

// "Epoch: [0]  [ 10/391]  eta: 0:00:12  img/s: 9843  floor: 71 %  data: 2 %  loss: 4.41 (4.52)  acc1: 3.9 (2.8)"
// Values since the last line, and in brackets over the epoch so far. `floor_share`: DataParallel::step_floor() as a
// part of the measured time of a step; 0: not shown. On a wide terminal a bar follows the step. A narrow one shows
// "Epoch 0 [ 10/391]  0:00:12 left  9843 img/s  floor 71 %  data 2 %  loss 4.52  acc1 2.8". Columns that do not fit
// are dropped, the least important first; the epoch and the loss stay.
std::string step_line(const StepReport& report, double floor_share = 0, Width width = 0);
// "Test: [ 12/79]", with a bar if there is room; without a total "Planning layers ...".
std::string work_line(const WorkReport& report, Width width = 0);
// "Test: Acc@1 75.610 Acc@5 93.050  loss 0.912"; without Acc@5 for fewer than six classes. With targets the metrics
// take the place of the accuracies: "Test: MAE 0.12 RMSE 0.2 R2 0.93  loss 0.04".
std::string eval_line(const Stats& stats, std::int64_t classes, const std::vector<Metric>& metrics = {});
// "Epoch 0: train loss 0.303  Test: Acc@1 97.580 Acc@5 99.980  loss 0.0952  8.2 s  5057 img/s  lr 0.05". On a
// narrow terminal the least important columns are dropped. With targets the test's loss is first, then the metrics.
std::string epoch_line(const EpochReport& report, std::int64_t classes, Width width = 0);
// Model, replicas and resolved options. Several lines, each with a line end.
std::string start_table(const DataParallel& net, const TrainerOptions& options);
// Seconds of each phase, one column per replica, or with a pipeline of `stages` stages one per stage of each replica.
// If not all columns fit side by side, there are several tables. Empty without phases.
std::string phase_table(const std::vector<std::string>& devices, const std::vector<PhaseTimes>& times, Width width = 0,
                        int stages = 1);
// One row per layer and a total. The floor is "-" if it is not known.
std::string layer_table(const std::string& device, const std::vector<LayerTime>& layers);
std::string summary_text(const RunSummary& summary, const std::string& devices = "", Width width = 0);
// Breaks lines at spaces so that they fit; continued lines begin with two spaces. Words wider than the terminal are
// not broken. Lines with three spaces in a row are taken for rows of a table and left as they are.
std::string wrapped(const std::string& text, Width width);

}  // namespace dp
