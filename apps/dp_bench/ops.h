// `dp_bench ops`: the time of each op of a training step, compared with its roofline floor and PyTorch's op.
#pragma once

#include "report/report.h"
#include "step.h"

namespace dp_bench {

struct OpsOptions {
  Network network;
  dp::TrainerOptions run{.batch_size = 64};  // batch size, mixed precision, fast convolutions
  int threads = 0;                           // 0: one per core
  std::string gpu;                           // id; empty: the first usable GPU, or the CPU if there is none
  bool on_cpu = false;                       // the CPU in any case
  int rounds = 8, steps = 5;
  std::string python = "python3";
  bool without_pytorch = false;
  double timeout = 300;
};
Report measure_ops(OpsOptions options, Progress progress);

}  // namespace dp_bench
