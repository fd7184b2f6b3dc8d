// `dp_bench comm`: every collective of every communicator, in nccl-tests' columns.
#pragma once

#include "report/report.h"
#include "step.h"

namespace dp_bench {

struct CommOptions {
  double begin = 8, end = 128 << 20;  // bytes
  double factor = 2;
  int ranks = 0;     // 0: see choose_devices()
  std::string gpus;  // ids; empty: CPU ranks, or see choose_devices()
  int threads = 1;   // of each CPU rank
  int rounds = 5;
  double seconds = 0.02;                   // per size and round, approximately
  std::vector<std::string> collectives;    // empty: all
  std::vector<std::string> communicators;  // "host", "host-processes", ...; empty: all
  double timeout = 300;
};
Report measure_comm(CommOptions options, Progress progress);

// Parses a size in bytes in nccl-tests' notation: "8", "64K", "128M", "1G". dp::Error(usage) names the option.
double parse_bytes(const std::string& option, const std::string& text);
std::vector<std::string> collective_names();
// nccl-tests' factor from algorithm bandwidth to bus bandwidth.
double bus_factor(const std::string& collective, int ranks);

}  // namespace dp_bench
