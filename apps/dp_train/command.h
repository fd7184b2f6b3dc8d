// What the command line asks for.
#pragma once

#include <dp/error.h>
#include <dp/run_options.h>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "predict.h"

namespace dp_train {

// Throws: usage.
[[noreturn]] inline void usage(const std::string& what) { throw dp::Error(dp::ErrorCode::usage, what); }

// The program that runs the command line: dp_train, or one that calls dp::train_main().
struct Program {
  std::string name;     // of its file, for messages
  std::string version;  // "dp_train 0.1.0", or "my_program, dp 0.1.0"
};
const Program& program();
void set_program(const std::string& name);  // before anything else

// Options of the subcommand export.
struct Export {
  std::string from;  // a run, a checkpoint or weights; empty: another subcommand, or none
  std::string file;
  bool fold_bn = false, dynamic_batch = false;
};

struct Command {
  Command();

  std::string model = "mnist_convnet";
  std::string data_path = "./datasets";
  std::optional<std::string> input;             // C,H,W of synthetic images
  std::optional<std::int64_t> classes, images;  // of the synthetic data set
  std::string classes_from = "checkpoint";
  std::optional<std::string> bad_images;   // "fail" or "skip"
  std::optional<std::int64_t> image_size;  // rows and columns of decoded images
  std::optional<double> crop_pct;          // their part that an evaluation sees
  std::optional<double> val_split;         // the part of the training images that is the test set
  std::vector<double> mean, std;           // of the images, per channel; empty: those of the data set

  std::optional<std::string> gpus;
  std::optional<int> num_gpus, cpu;
  int replicas_per_device = 1;
  std::string engine = "dp";
  int nnodes = 1, node_rank = 0, master_port = 0;
  std::optional<int> local_rank;
  std::optional<std::string> master_addr;

  std::optional<std::int64_t> batch_size_per_gpu;
  std::string lr_scale = "none";
  std::optional<std::string> output_dir, experiment;
  int max_restarts = 0;  // this and the following: supervisor.h
  bool elastic = false;
  std::optional<std::string> on_end, webhook;  // a shell command; an address

  bool estimate_memory = false;            // subcommand estimate-memory
  bool check_data = false;                 // subcommand check-data
  bool environment = false;                // subcommand env
  bool selftest = false;                   // subcommand selftest
  std::vector<std::string> report_runs{};  // subcommand report: folders
  std::optional<std::string> report_file;
  std::string status_run;  // subcommand status: a folder
  std::string convert;     // subcommand convert: a file or folder with weights
  std::string convert_output, convert_entry;
  Export exported{};
  std::string fetch;                  // subcommand fetch: a data set
  std::optional<std::string> mirror;  // its base address
  PredictOptions predict{};           // subcommand predict
  bool evaluate = false, print_plan = false, list_models = false, list_datasets = false;
  bool quiet = false, no_progress = false;

  std::optional<std::string> config, save_config;
  std::map<std::string, dp::OptionValue> given{};  // on the command line, by name
  std::vector<dp::RecordedOption> configured{};    // in the file of --config

  // Options that are not given have the values of the model's recipe and the data set. Not set here:
  // devices, process group, run folder, and what depends on the number of replicas (see trainer_options()).
  dp::TrainerOptions trainer{};
  // The given options that have an effect on one kind of device only.
  std::vector<std::pair<std::string, dp::DeviceKind>> given_for_one_kind;
};

// All options of dp_train: its own, and dp::run_options().
const dp::OptionTable<Command>& command_table();

// Parses the command line. Nullopt after printing --help or --version. dp::Error(usage) for an invalid one. With
// --resume the options of the run are complete after complete() only.
std::optional<Command> parse_command(int argc, const char* const* argv);

// The command for a run that was started with these options. What the command line or the file of --config gives
// comes first, then `recorded`, then the recipe. dp::Error(usage) for an option that does not apply.
Command complete(const Command& command, const std::vector<dp::RecordedOption>& recorded);

}  // namespace dp_train
