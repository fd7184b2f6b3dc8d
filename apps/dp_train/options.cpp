#include "options.h"

#include <dp/error.h>
#include <charconv>
#include <ctime>
#include <filesystem>

namespace dp_train {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void usage(const std::string& what) { throw dp::Error(dp::ErrorCode::usage, what); }

std::int64_t default_epochs(const std::string& dataset) {
  if (dataset == "fashion_mnist") return 10;
  if (dataset == "mnist") return 3;
  if (dataset == "cifar10" || dataset == "cifar100") return 30;
  if (dataset == "imagefolder") return 90;
  return 1;  // digits, synthetic
}

dp::Schedule schedule_of(const Arguments& a, const dp::models::Recipe& recipe, std::int64_t epochs) {
  dp::Schedule schedule;
  const std::string name = a.lr_scheduler.value_or(recipe.schedule);
  schedule.kind = dp::parse_schedule(name);
  const bool step = schedule.kind == dp::ScheduleKind::step, multistep = schedule.kind == dp::ScheduleKind::multistep;
  if (a.lr_step_size && !step) usage("--lr-step-size requires --lr-scheduler step, but the schedule is " + name);
  if (a.lr_gamma && !step && !multistep)
    usage("--lr-gamma requires --lr-scheduler step or multistep, but the schedule is " + name);
  if (!a.lr_milestones.empty() && !multistep)
    usage("--lr-milestones requires --lr-scheduler multistep, but the schedule is " + name);
  schedule.step_size = a.lr_step_size.value_or(1);
  schedule.gamma = a.lr_gamma.value_or(0.1);
  schedule.milestones = a.lr_milestones;
  if (multistep && schedule.milestones.empty()) {
    const std::vector<double> halves{0.5, 0.75};
    for (const double part : recipe.milestones.empty() ? halves : recipe.milestones)
      schedule.milestones.push_back(part * static_cast<double>(epochs));
  }
  schedule.warmup_epochs = a.lr_warmup_epochs;
  return schedule;
}

dp::Optimizer optimizer_of(const Arguments& a, const dp::models::Recipe& recipe) {
  if (a.optimizer == "sgd") {
    if (!a.opt_betas.empty()) usage("--opt-betas requires --optimizer adamw");
    if (a.opt_eps) usage("--opt-eps requires --optimizer adamw");
    return dp::Sgd{.lr = a.lr.value_or(recipe.lr),
                   .momentum = a.momentum.value_or(recipe.momentum),
                   .nesterov = a.nesterov.value_or(recipe.nesterov),
                   .weight_decay = a.weight_decay.value_or(recipe.weight_decay)};
  }
  if (a.momentum) usage("--momentum requires --optimizer sgd");
  if (a.nesterov) usage("--nesterov requires --optimizer sgd");
  dp::AdamW adamw;
  if (!a.opt_betas.empty()) adamw.beta1 = a.opt_betas.at(0), adamw.beta2 = a.opt_betas.at(1);
  adamw.lr = a.lr.value_or(adamw.lr);
  adamw.eps = a.opt_eps.value_or(adamw.eps);
  adamw.weight_decay = a.weight_decay.value_or(adamw.weight_decay);
  return adamw;
}

void read_trace_steps(const std::string& text, dp::DataParallelOptions& parallel) {
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, parallel.trace_first);
  if (first.ec == std::errc() && first.ptr != end && *first.ptr == ':') {
    const auto count = std::from_chars(first.ptr + 1, end, parallel.trace_steps);
    if (count.ec == std::errc() && count.ptr == end && parallel.trace_first >= 0 && parallel.trace_steps > 0) return;
  }
  usage("--trace-steps '" + text + "' is not FIRST:COUNT, such as 10:10");
}

dp::Graphs graphs_of(const Arguments& a) {
  if (a.no_graphs && a.graphs.value_or("never") != "never")
    usage("--no-graphs is the same as --graphs never, but --graphs is " + *a.graphs + "; give one of them");
  if (a.no_graphs || a.graphs == "never") return dp::Graphs::never;
  return a.graphs == "always" ? dp::Graphs::always : dp::Graphs::automatic;
}

dp::DataParallelOptions parallel_options(const Arguments& a, const std::vector<dp::Device>& devices) {
  dp::DataParallelOptions parallel;
  parallel.devices = devices;
  if (a.reduce == "master") parallel.reduce = dp::Reduce::master;
  if (a.reduce == "allreduce") parallel.reduce = dp::Reduce::all_reduce;
  if (a.reduce == "sharded") parallel.reduce = dp::Reduce::sharded;
  if (a.reduce_dtype == "bfloat16") parallel.reduce_dtype = dp::DType::bf16;
  if (a.comm == "host") parallel.comm = dp::Comm::host;
  if (a.comm == "p2p") parallel.comm = dp::Comm::p2p;
  if (a.comm == "nccl") parallel.comm = dp::Comm::nccl;
  if (a.comm == "tcp") parallel.comm = dp::Comm::tcp;
  if (a.comm == "mpi") parallel.comm = dp::Comm::mpi;
  if (a.loss == "gathered") parallel.loss = dp::LossAt::gathered;
  if (a.split == "chunk") parallel.split = dp::Split::chunk;
  if (a.bucket_mb) parallel.bucket_bytes = static_cast<std::size_t>(*a.bucket_mb * 1048576.0);
  parallel.threads_per_replica = a.threads_per_replica;
  parallel.seed = a.seed;
  parallel.deterministic = a.deterministic;
  parallel.fast_convolutions = a.fast_conv;
  parallel.tf32 = a.tf32;
  parallel.autotune = !a.no_autotune;
  parallel.graphs = graphs_of(a);
  parallel.dropout = !a.no_dropout;
  parallel.label_smoothing = a.label_smoothing;
  parallel.grad_accum_steps = a.grad_accum_steps;
  parallel.clip_grad_norm = a.clip_grad_norm;
  for (const std::string& pattern : a.freeze) parallel.parameter_groups.push_back({.pattern = pattern, .frozen = true});
  if (a.no_decay_norm_bias) parallel.parameter_groups.push_back({.vectors = true, .weight_decay = 0.0f});
  if (a.amp_dtype && !a.amp) usage("--amp-dtype requires --amp");
  if (a.amp) parallel.amp = a.amp_dtype == "float16" ? dp::Amp::float16 : dp::Amp::bfloat16;
  if (a.on_nonfinite == "skip") parallel.on_nonfinite = dp::OnNonfinite::skip;
  parallel.check_replicas = a.check_replicas;
  if (a.bn == "pooled") parallel.batch_norm = dp::BatchNormMode::pooled;
  if (a.bn == "sync" || a.sync_bn) parallel.batch_norm = dp::BatchNormMode::sync;
  parallel.logical_shards = a.logical_shards;
  if (a.model_ema) parallel.ema_decay = a.model_ema_decay;
  parallel.timeout_seconds = a.timeout;
  if (!a.trace.empty() || a.profile)
    read_trace_steps(a.trace_steps.value_or("10:10"), parallel);
  else if (a.trace_steps)
    usage("--trace-steps requires --trace or --profile");
  return parallel;
}

OutputFolder new_folder(const std::string& model) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char time[32];
  std::strftime(time, sizeof time, "%Y%m%d-%H%M%S", &parts);
  const std::string base = std::string("runs/") + time + "_" + model;
  std::error_code error;
  const bool made_runs = fs::create_directory("runs", error);
  for (int number = 1; number < 1000 && !error; ++number) {
    const std::string path = number == 1 ? base : base + "-" + std::to_string(number);
    if (fs::create_directory(path, error)) return OutputFolder(path, made_runs);
  }
  if (made_runs) {
    std::error_code ignored;
    fs::remove("runs", ignored);
  }
  throw dp::Error(dp::ErrorCode::io,
                  "cannot create the run folder '" + base + "': " + error.message() + "; choose one with --output-dir");
}

void check_name(const std::string& name) {
  const bool good = !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
                    dp::printable(name) == name;
  if (!good) usage("--experiment '" + name + "' is not a plain name; leave out slashes and control characters");
}

// The run folder of a checkpoint, or `resume` if it is a run folder. Empty for a checkpoint outside a run folder.
std::string folder_of_resumed(const std::string& resume) {
  std::error_code error;
  if (fs::exists(resume + "/checkpoints", error)) return resume;
  const fs::path checkpoint = fs::weakly_canonical(resume, error);
  if (error || checkpoint.parent_path().filename() != "checkpoints") return "";
  return checkpoint.parent_path().parent_path().string();
}

}  // namespace

std::string dataset_of(const Arguments& a, const dp::models::Recipe& recipe) {
  return a.dataset.value_or(recipe.dataset);
}

dp::TrainerOptions trainer_options(const Arguments& a, const dp::models::Recipe& recipe,
                                   const std::vector<dp::Device>& devices,
                                   const std::shared_ptr<dp::ProcessGroup>& group) {
  if (a.evaluate && a.init.empty() && a.resume.empty())
    usage("--evaluate requires weights; give --init FILE or --resume PATH");
  if (a.init_partial && a.init.empty()) usage("--init-partial requires --init FILE");
  if (!a.init.empty() && !a.resume.empty() && a.resume != "auto")
    usage("--init and --resume PATH exclude each other; give one");
  if (a.resume == "auto" && !a.output_dir && !a.experiment)
    usage("--resume auto requires the run's folder; give it with --output-dir");
  if (a.experiment) check_name(*a.experiment);
  const auto replicas = group ? static_cast<std::int64_t>(group->size()) : static_cast<std::int64_t>(devices.size());
  dp::TrainerOptions options;
  options.dataset_name = dataset_of(a, recipe);
  options.epochs = a.epochs.value_or(default_epochs(options.dataset_name));
  options.max_steps = a.max_steps;
  options.batch_size = a.batch_size_per_gpu ? *a.batch_size_per_gpu * replicas : a.batch_size.value_or(128);
  options.optimizer = optimizer_of(a, recipe);
  if (a.lr_scale == "linear") dp::learning_rate(options.optimizer) *= static_cast<float>(replicas);
  options.schedule = schedule_of(a, recipe, options.epochs);
  options.parallel = parallel_options(a, devices);
  options.parallel.process_group = group;
  options.shuffle = !a.no_shuffle;
  options.augment = !a.no_augment;
  options.drop_last = a.drop_last;
  options.workers = a.workers;
  if (a.images_on == "host") options.images_on = dp::ImagesOn::host;
  if (a.images_on == "device") options.images_on = dp::ImagesOn::device;
  options.save_every_epochs = a.save_every;
  options.save_every_steps = a.save_every_steps;
  options.checkpoint_hist = a.checkpoint_hist;
  options.resume = a.resume;
  options.init = a.init;
  options.init_partial = a.init_partial;
  options.summary_file = a.summary;
  if (!a.trace.empty() && a.evaluate) usage("--trace records training steps; remove --evaluate");
  if (a.profile && a.evaluate) usage("--profile measures training steps; remove --evaluate");
  options.trace_file = a.trace;
  options.profile = a.profile;
  options.dry_run = a.dry_run;
  options.print_freq = a.print_freq;
  return options;
}

std::string without_effect(const Arguments& a, dp::DeviceKind kind) {
  const bool gpus = kind == dp::DeviceKind::cuda;
  std::string flags;
  for (const auto& [flag, given] : {std::pair("--tf32", a.tf32 && !gpus),
                                    {"--graphs", a.graphs && *a.graphs != "always" && !gpus},
                                    {"--no-graphs", a.no_graphs && !gpus},
                                    {"--no-autotune", a.no_autotune && !gpus},
                                    {"--threads-per-replica", a.threads_per_replica > 0 && gpus}})
    if (given) flags += (flags.empty() ? "" : ", ") + std::string(flag);
  if (flags.empty()) return flags;
  return "no effect on " + std::string(gpus ? "GPUs: " : "the CPU: ") + flags;
}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (made_) fs::remove(path_, ignored);
  if (made_runs_) fs::remove("runs", ignored);
}

OutputFolder output_folder(const Arguments& a) {
  const bool named = a.output_dir || a.experiment;
  if (named) {
    const std::string folder = a.output_dir.value_or("runs");
    return OutputFolder(a.experiment ? folder + "/" + *a.experiment : folder);
  }
  if (a.dry_run || a.evaluate || a.print_plan) return OutputFolder("");
  if (!a.resume.empty()) {
    const std::string folder = folder_of_resumed(a.resume);
    if (!folder.empty()) return OutputFolder(folder);
  }
  return new_folder(a.model);
}

}  // namespace dp_train
