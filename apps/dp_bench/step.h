// `dp_bench step`: one model's training step in every variant there is, in turns.
#pragma once

#include <string>
#include <vector>

#include "network.h"
#include "report/report.h"

namespace dp_bench {

struct StepOptions {
  Network network;
  std::int64_t batch = 64;      // global
  int replicas = 2;             // N of `dp` and `ddp`
  std::string gpus;             // their ids; empty: CPU replicas
  int replicas_per_device = 1;  // above 1: a variant of so many replicas on every GPU
  int threads = 0;              // in all, on the CPU; 0: a thread for each core
  int rounds = 8;
  int steps = 0;         // of one variant in one round; 0: as many as take `seconds`
  double seconds = 1.0;  // of one variant in one round
  int warmup = 5;        // steps before the first round, which do not count
  int batches = 0;       // different ones, used in turn; 0: more than a cache holds
  std::string python = "python3";
  std::vector<std::string> variants;  // their keys; empty: all
  bool fast_conv = false;
  std::string amp = "off";         // bf16 or fp16: mixed precision, in every variant
  std::string images_on = "host";  // or device: as bytes, of which every variant makes its augmented batches
  double timeout = 300;            // seconds without an answer
};

// One way to train, before it is started.
struct VariantSpec {
  std::string key, title;
  std::string group;                   // who computes: "plan", "dp", "ddp", "pytorch"
  int devices = 1;                     // replicas or ranks
  int processes = 1;                   // each a rank
  std::string absent;                  // why it can not be had here; empty: it can
  std::vector<std::string> arguments;  // of its program
};
// Every variant for these options, in the order of the table. dp::Error(usage) for a key in `variants` that does not exist.
std::vector<VariantSpec> variants_for(const StepOptions& options);
// One of ours: group "plan", "dp" or "ddp" on so many devices, with so many CPU threads for each and these further arguments.
VariantSpec our_variant(const StepOptions& options, const std::string& key, const std::string& title,
                        const std::string& group, int devices, int threads_each, const std::vector<std::string>& more);
// With every automatic choice made.
StepOptions resolved(StepOptions options);

// What was measured of one variant.
struct Measured {
  VariantSpec spec;
  std::vector<double> seconds_per_step;  // a round each; empty: there is none, `note` says why
  double bytes_per_device = 0;
  double parameter_bytes = 0;
  std::string reduce;
  std::string note;
};
// Tells a person what goes on.
using Progress = void (*)(const std::string& line);

struct StepResult {
  StepOptions options;
  std::vector<Measured> variants;
  std::vector<std::pair<std::string, std::string>> facts;
};
// The options are resolved ones.
StepResult measure_steps(const StepOptions& options, const std::vector<VariantSpec>& variants, Progress progress);
Report step_report(const StepResult& result);

// Bytes that the devices send to each other in a step, by theory: a sum of `bytes` over n devices and its way back to all of
// them moves each byte 2(n-1) times, wherever the update is made.
double bytes_sent(double bytes, int devices);
// The most that one device sends: 2(n-1)/n of them under allreduce and sharded; n-1 of them for the master.
double bytes_sent_by_one(double bytes, int devices, const std::string& reduce);

}  // namespace dp_bench
