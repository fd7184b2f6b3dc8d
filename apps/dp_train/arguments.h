// The parsed command line. Empty fields were not given; the model's recipe and the data set supply their defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dp_train {

struct Arguments {
  std::string model = "mnist_convnet";
  std::optional<std::string> dataset;
  std::string data_path = "./datasets";
  std::optional<std::string> input;             // C,H,W of synthetic images
  std::optional<std::int64_t> classes, images;  // of the synthetic data set

  std::optional<std::string> gpus;
  std::optional<int> num_gpus, cpu;
  int replicas_per_device = 1;
  std::string engine = "dp";
  int nnodes = 1, node_rank = 0, master_port = 0;
  std::optional<std::string> master_addr;
  double timeout = 300;
  int threads_per_replica = 0;

  std::optional<std::int64_t> batch_size, batch_size_per_gpu, epochs;
  std::int64_t max_steps = 0;
  std::string optimizer = "sgd";
  std::optional<float> lr, momentum, weight_decay, opt_eps;
  std::vector<double> opt_betas;
  std::optional<bool> nesterov;
  std::vector<std::string> freeze;  // patterns of parameter names
  bool no_decay_norm_bias = false;
  std::string lr_scale = "none";
  std::optional<std::string> lr_scheduler;
  std::optional<double> lr_step_size, lr_gamma;
  std::vector<double> lr_milestones;
  double lr_warmup_epochs = 0;
  int grad_accum_steps = 1;
  std::optional<double> clip_grad_norm;
  float label_smoothing = 0;
  std::string on_nonfinite = "abort";
  bool model_ema = false;
  double model_ema_decay = 0.9998;

  std::string reduce = "auto", reduce_dtype = "float32", comm = "auto", loss = "local", split = "balanced";
  std::optional<double> bucket_mb;
  bool check_replicas = false;
  std::string bn = "master";
  bool sync_bn = false;
  int logical_shards = 0;

  std::uint64_t seed = 42;
  bool amp = false;
  std::optional<std::string> amp_dtype;
  bool deterministic = false, fast_conv = false, tf32 = false, no_autotune = false, no_graphs = false;
  std::optional<std::string> graphs;
  bool no_augment = false, no_shuffle = false, no_dropout = false, drop_last = false;
  int workers = 0;
  std::string images_on = "auto";

  std::optional<std::string> output_dir, experiment;
  std::string resume, init;
  bool init_partial = false;
  std::int64_t save_every = 1, save_every_steps = 0;
  int checkpoint_hist = 0;

  bool estimate_memory = false;  // subcommand estimate-memory
  bool environment = false;      // subcommand env
  bool evaluate = false, dry_run = false, print_plan = false, list_models = false;
  int print_freq = 10;
  bool profile = false;
  bool quiet = false, no_progress = false;
  std::string summary, trace;
  std::optional<std::string> trace_steps;
};

// Parses the command line. Returns nullopt after printing --help or --version. dp::Error(usage) for invalid arguments.
std::optional<Arguments> parse_arguments(int argc, const char* const* argv);

}  // namespace dp_train
