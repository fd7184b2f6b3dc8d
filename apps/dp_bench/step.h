// `dp_bench step`: one model's training step, or its evaluation, in all variants, measured in rounds.
// `dp_bench scaling`: the step on 1, 2, ... devices.
#pragma once

#include <dp/trainer.h>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "child.h"
#include "report/report.h"

namespace dp_bench {

// The measured network and its input shape.
struct Network {
  std::string model = "mnist_convnet";
  std::vector<std::int64_t> input;  // (C,H,W) of a sample; empty: the model's default
  std::int64_t classes = 0;         // 0: the model's default
};

// Fills in the defaults: images and classes of the model's data set. dp::Error(usage) for a model that is not in the
// registry or does not fit the shape.
Network resolved(Network network);
std::string shape_text(const std::vector<std::int64_t>& shape, const char* between);  // "3,32,32"

struct StepOptions {
  Network network;
  dp::TrainerOptions run{.batch_size = 64};  // of every variant: batch size, mixed precision, fast convolutions
  int replicas = 0;                          // N of `dp` and `ddp`; 0: see choose_devices()
  std::string gpus;                          // ids; empty: CPU replicas, or see choose_devices()
  int replicas_per_device = 1;               // above 1: adds a variant with this number of replicas on each GPU
  int threads = 0;                           // total CPU threads; 0: about one per core
  int rounds = 8;
  int steps = 0;         // per variant and round; 0: as many as take `seconds`
  double seconds = 1.0;  // per variant and round
  int warmup = 5;        // unmeasured steps before the first round
  int batches = 0;       // number of different batches, used in rotation; 0: more than a cache holds
  std::string python = "python3";
  std::vector<std::string> variants;  // keys; empty: all
  std::string images_on = "host";     // or device: resident bytes, from which every variant makes its augmented batches
  double timeout = 300;               // seconds without a reply
  bool inference = false;             // measures evaluations: forward and loss
  bool goals = false;                 // whether the report shows the project's goals
};

// A training variant before its start.
struct VariantSpec {
  std::string key, title;
  std::string group;                   // implementation: "plan", "dp", "ddp", "pytorch"
  int devices = 1;                     // replicas or ranks
  int processes = 1;                   // one per rank
  std::string absent;                  // why it is not available here; empty: it is
  std::vector<std::string> arguments;  // of its program
  bool accumulates = false;            // several micro-batches per step, each normalised by its own statistics
};
// All variants for these options, in the order of the table. dp::Error(usage) for an unknown key in `options.variants`.
std::vector<VariantSpec> variants_for(const StepOptions& options);
// A variant of bench_step: group "plan", "dp" or "ddp" with `threads_each` CPU threads per device and the further
// arguments `more`.
VariantSpec our_variant(const StepOptions& options, const std::string& key, const std::string& title,
                        const std::string& group, int devices, int threads_each, const std::vector<std::string>& more);
// The ids of the GPUs on which dp_train trains by default. Empty if it trains on the CPU.
std::vector<int> usable_gpus();
// Resolves the device list `gpus` and the number of devices. Empty and 0: usable_gpus() if there are at least `least`,
// otherwise 2 CPU replicas. dp::Error(usage), dp::Error(device).
void choose_devices(std::string& gpus, int& count, std::size_t least);
// Resolves all automatic choices. dp::Error(usage), dp::Error(device).
StepOptions resolved(StepOptions options);
// The measured programs' words for mixed precision.
std::vector<std::string> amp_words(const dp::TrainerOptions& run);

// The measurements of one variant.
struct Measured {
  VariantSpec spec;
  std::vector<double> seconds_per_step;  // one per round; empty: not measured, see `note`
  double bytes_per_device = 0;
  double parameter_bytes = 0;
  std::string reduce;
  Reply ready;                 // of its first rank
  std::vector<Reply> replies;  // of its first rank, one per round
  std::string note;
};
// Prints a line about the progress.
using Progress = void (*)(const std::string& line);

struct StepResult {
  StepOptions options;
  std::vector<Measured> variants;
  std::vector<std::pair<std::string, std::string>> facts;
};
// `options` must be resolved.
StepResult measure_steps(const StepOptions& options, const std::vector<VariantSpec>& variants, Progress progress);
Report step_report(const StepResult& result);
// Measures `dp` with 1 to N replicas and `ddp` with 2 to N ranks, all with the same global batch. N: `replicas`.
Report measure_scaling(const StepOptions& options, Progress progress);
// The facts of a report: rounds, slices, batches, versions and load. A warning if other processes used the machine.
std::vector<std::pair<std::string, std::string>> facts_of(const StepResult& result);

// Theoretical bytes that all devices send in a step. Reducing `bytes` over n devices and distributing the result moves
// each byte 2(n-1) times, regardless of where the update runs.
double bytes_sent(double bytes, int devices);
// The most that one device sends: 2(n-1)/n times `bytes` for allreduce and sharded, n-1 times for the master.
double bytes_sent_by_one(double bytes, int devices, const std::string& reduce);

}  // namespace dp_bench
