// The flags, their spellings and their groups in --help.
#include <dp/dp.h>
#include <cstdio>
#include <string_view>

#include "arguments.h"
#include "validators.h"

namespace dp_train {
namespace {

constexpr std::int64_t kBillion = 1'000'000'000;

void add_what(CLI::App& app, Arguments& a) {
  app.option_defaults()->group("Model and data");
  app.add_option("--model,--arch,-a", a.model, "network; --list-models lists them")->capture_default_str();
  app.add_flag("--list-models", a.list_models, "print the networks and exit");
  app.add_option("--dataset", a.dataset,
                 "digits (drawn, needs no files), mnist, fashion_mnist, cifar10, cifar100, imagefolder, synthetic "
                 "(random bytes) [by model]");
  app.add_option("--data-path,--data-dir", a.data_path, "folder of the data set's files")
      ->check(not_empty("a folder"))
      ->capture_default_str();
  app.add_option("--input", a.input, "synthetic: image shape C,H,W [1,28,28]");
  app.add_option("--classes,--num-classes", a.classes, "synthetic: number of classes [10]")->check(whole(1, 1 << 20));
  app.add_option("--images", a.images, "synthetic: number of training images; the test set has a sixth of it [60000]")
      ->check(whole(1, 1 << 26));
}

void add_devices(CLI::App& app, Arguments& a) {
  app.option_defaults()->group("Devices");
  auto* gpus = app.add_option("--gpus", a.gpus, "ids (0,1), ranges (0-3), or all [all visible]");
  auto* num_gpus = app.add_option("--num-gpus", a.num_gpus, "the first N GPUs")->check(whole(1, 1024));
  auto* cpu = app.add_option("--cpu", a.cpu, "train on N CPU replicas [2 if no GPU is usable]")->check(whole(1, 256));
  gpus->excludes(num_gpus)->excludes(cpu);
  num_gpus->excludes(cpu);
  app.add_option("--replicas-per-device", a.replicas_per_device, "replicas on each device")
      ->check(whole(1, 64))
      ->capture_default_str();
  app.add_option("--threads-per-replica", a.threads_per_replica, "threads per CPU replica [cores / replicas]")
      ->check(whole(1, 1024));
}

void add_processes(CLI::App& app, Arguments& a) {
  app.option_defaults()->group("Processes");
  app.add_option(
         "--engine", a.engine,
         "dp: one process drives all devices; ddp: one process per device, started by this one, torchrun or mpirun")
      ->check(CLI::IsMember({"dp", "ddp"}))
      ->capture_default_str();
  app.add_option("--nnodes", a.nnodes, "ddp: number of hosts; start each with the same command and its own --node-rank")
      ->check(whole(1, 1024))
      ->capture_default_str();
  app.add_option("--node-rank", a.node_rank, "ddp: number of this host; the others connect to host 0")
      ->check(whole(0, 1023))
      ->capture_default_str();
  app.add_option("--master-addr", a.master_addr, "ddp: address of host 0, the only one on which it listens [127.0.0.1]")
      ->check(not_empty("a host"));
  app.add_option("--master-port", a.master_port, "ddp: port of host 0 [a free one; 29500 with several hosts]")
      ->check(whole(1, 65535));
  app.add_option(
         "--timeout", a.timeout,
         "abort (exit code 6) after N seconds without progress, or if a rank is missing for so long; 0 disables the "
         "watchdog")
      ->check(real(0, 1e6))
      ->capture_default_str();
}

void add_training(CLI::App& app, Arguments& a) {
  app.option_defaults()->group("Training");
  auto* batch = app.add_option("-b,--batch-size", a.batch_size, "global batch size, per optimizer step [128]")
                    ->check(whole(1, 1 << 20));
  app.add_option("--batch-size-per-gpu", a.batch_size_per_gpu, "batch size per replica, instead of -b")
      ->check(whole(1, 1 << 20))
      ->excludes(batch);
  app.add_option("--epochs", a.epochs, "number of epochs [by data set]")->check(whole(1, kBillion));
  app.add_option("--max-steps", a.max_steps, "stop after N optimizer steps, steps before a resume included")
      ->check(whole(1, kBillion));
  app.add_option("--optimizer,--opt", a.optimizer, "sgd or adamw")
      ->check(CLI::IsMember({"sgd", "adamw"}))
      ->capture_default_str();
  app.add_option("--lr", a.lr, "learning rate [sgd: by model; adamw: 0.001]")->check(real(0, 1e6));
  app.add_option("--momentum", a.momentum, "sgd: momentum [by model]")->check(below(0, 1));
  app.add_flag_function(
      "--nesterov,!--no-nesterov", [&a](std::int64_t count) { a.nesterov = count > 0; },
      "sgd: Nesterov momentum [by model]");
  app.add_option("--opt-betas", a.opt_betas,
                 "adamw: decay of the averages of the gradient and of its square [0.9 0.999]")
      ->expected(2)
      ->check(below(0, 1));
  app.add_option("--opt-eps", a.opt_eps, "adamw: added to the denominator [1e-08]")->check(positive(1));
  app.add_flag("--no-decay-norm-bias", a.no_decay_norm_bias, "no weight decay for biases and normalisation");
  app.add_option("--freeze", a.freeze, "do not train parameters with these names, such as 'conv1.*'; may be repeated")
      ->expected(1)
      ->take_all();
  app.add_option("--weight-decay,--wd", a.weight_decay,
                 "weight decay [sgd, where it is an L2 penalty: by model; adamw: 0.01]")
      ->check(real(0, 1e6));
  app.add_option("--lr-scale", a.lr_scale, "none, or linear: multiply the rate by the number of replicas")
      ->check(CLI::IsMember({"none", "linear"}))
      ->capture_default_str();
  app.add_option("--lr-scheduler", a.lr_scheduler, "constant, step, multistep, cosine [by model]");
  app.add_option("--lr-step-size", a.lr_step_size, "step: epochs between drops [1]")->check(real(1e-6, 1e9));
  app.add_option("--lr-gamma", a.lr_gamma, "step, multistep: factor of each drop [0.1]")->check(real(0, 1e6));
  app.add_option("--lr-milestones", a.lr_milestones,
                 "multistep: epochs of the drops, ascending [50 % and 75 % of the epochs]")
      ->delimiter(',')
      ->check(real(0, 1e9))
      ->take_all();
  app.add_option("--lr-warmup-epochs", a.lr_warmup_epochs, "epochs of linear warm-up")->check(real(0, 1e9));
  app.add_option("--grad-accum-steps", a.grad_accum_steps, "split each batch into N micro-batches")
      ->check(whole(1, 1 << 20));
  app.add_option("--clip-grad-norm", a.clip_grad_norm, "clip the gradient to this L2 norm, over all parameters")
      ->check(positive(1e12));
  app.add_option("--label-smoothing", a.label_smoothing, "label smoothing, in [0, 1)")
      ->check(below(0, 1))
      ->capture_default_str();
  app.add_option("--on-nonfinite", a.on_nonfinite, "action if the loss or a gradient is NaN or infinite: abort, skip")
      ->check(CLI::IsMember({"abort", "skip"}))
      ->capture_default_str();
  app.add_flag("--amp", a.amp, "mixed precision on GPUs: 16-bit activations and weights, float32 masters");
  app.add_option("--amp-dtype", a.amp_dtype, "type for --amp: bfloat16, or float16 with loss scaling [bfloat16]")
      ->check(CLI::IsMember({"bfloat16", "float16"}));
  app.add_flag("--model-ema", a.model_ema, "maintain a moving average of the weights and evaluate it as well");
  app.add_option("--model-ema-decay", a.model_ema_decay, "decay of the moving average per step, in [0, 1)")
      ->check(below(0, 1))
      ->capture_default_str();
}

void add_parallel(CLI::App& app, Arguments& a) {
  app.option_defaults()->group("Data parallelism");
  app.add_option("--reduce", a.reduce, "gradient reduction: auto, master, allreduce, sharded")
      ->check(CLI::IsMember({"auto", "master", "allreduce", "sharded"}))
      ->capture_default_str();
  app.add_option("--reduce-dtype", a.reduce_dtype,
                 "data type of the gradient reduction: float32, or bfloat16 (half the bytes, rounded)")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  app.add_option(
         "--comm", a.comm,
         "communicator: auto, host (CPU), p2p (GPUs of one process), nccl (distinct GPUs), tcp, mpi (CPU, with ddp)")
      ->check(CLI::IsMember({"auto", "host", "p2p", "nccl", "tcp", "mpi"}))
      ->capture_default_str();
  app.add_option("--loss", a.loss, "where the loss is computed: local (on each replica), gathered (on the master)")
      ->check(CLI::IsMember({"local", "gathered"}))
      ->capture_default_str();
  app.add_option("--split", a.split, "shard sizes: balanced, or chunk (as torch.chunk)")
      ->check(CLI::IsMember({"balanced", "chunk"}))
      ->capture_default_str();
  app.add_option("--bucket-mb", a.bucket_mb, "size of a gradient bucket in MiB [by model]")->check(real(0.001, 65536));
  auto* bn = app.add_option("--bn", a.bn,
                            "batch normalisation: master (statistics per shard), pooled (running statistics of the "
                            "whole batch), sync (statistics of the whole batch)")
                 ->check(CLI::IsMember({"master", "pooled", "sync"}))
                 ->capture_default_str();
  app.add_flag("--sync-bn", a.sync_bn, "same as --bn sync")->excludes(bn);
  app.add_option(
         "--logical-shards", a.logical_shards,
         "split each batch into N shards: bit-identical weights for every number of replicas that divides N; implies "
         "--deterministic")
      ->check(whole(1, 4096));
  app.add_option("--graphs", a.graphs,
                 "GPUs: run training steps as CUDA graphs: auto (not with nccl between several GPUs of a process), "
                 "always (or fail), never [auto]")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  app.add_flag("--no-graphs", a.no_graphs, "same as --graphs never");
  app.add_flag("--no-autotune", a.no_autotune, "GPUs: choose kernels by shape, without timing them");
  app.add_flag("--fast-conv", a.fast_conv, "allow faster convolutions with more rounding (CPU: Winograd)");
  app.add_flag("--tf32", a.tf32, "GPUs: allow TF32 in float32 layers where it is faster");
  app.add_flag("--check-replicas", a.check_replicas, "check after every step that the replicas are bit-identical");
}

void add_order(CLI::App& app, Arguments& a) {
  app.option_defaults()->group("Randomness and order");
  app.add_option("--seed", a.seed, "seed of weights, dropout, order and augmentation")
      ->check(seed_number())
      ->capture_default_str();
  app.add_flag("--deterministic", a.deterministic, "bit-identical runs and resumes on the same devices");
  app.add_flag("--no-augment", a.no_augment, "do not augment training images");
  app.add_flag("--no-shuffle", a.no_shuffle, "read training images in order");
  app.add_flag("--no-dropout", a.no_dropout, "turn dropout off");
  app.add_flag("--drop-last", a.drop_last, "drop the incomplete last batch of an epoch");
  app.add_option("-j,--workers", a.workers, "loader threads [unused cores, 1 to 4]")->check(whole(1, 256));
  app.add_option("--images-on", a.images_on,
                 "where the data set is stored: host, device (device-resident, as bytes), auto (on GPUs with room)")
      ->check(CLI::IsMember({"auto", "host", "device"}))
      ->capture_default_str();
}

void add_run(CLI::App& app, Arguments& a) {
  app.option_defaults()->group("The run");
  app.add_option("--output-dir", a.output_dir, "folder of the run [runs/<time>_<model>]")->check(not_empty("a folder"));
  app.add_option("--experiment", a.experiment, "name of the run: <output-dir>/<experiment>, by default in runs/");
  app.add_option("--resume", a.resume,
                 "continue from a checkpoint or run folder; auto: from the newest in --output-dir, if any")
      ->check(not_empty("a checkpoint, a run folder, or auto"));
  app.add_option("--init", a.init, "initial weights, a safetensors file")->check(not_empty("a file"));
  app.add_flag("--init-partial", a.init_partial, "load the tensors of --init that fit, and list the others");
  app.add_option("--save-every", a.save_every, "epochs between checkpoints; 0: only at the end")
      ->check(whole(0, kBillion))
      ->capture_default_str();
  app.add_option("--save-every-steps", a.save_every_steps, "optimizer steps between additional checkpoints")
      ->check(whole(1, kBillion));
  app.add_option("--checkpoint-hist", a.checkpoint_hist, "keep the latest N checkpoints as step-<number>")
      ->check(whole(0, 1 << 20))
      ->capture_default_str();
  app.add_flag("-e,--evaluate,--test-only", a.evaluate, "only evaluate the weights of --init or --resume");
  app.add_flag("--dry-run", a.dry_run, "one training and one evaluation batch, no files");
  app.add_flag("--print-plan", a.print_plan, "print the ops and buffers of a step, and exit");
  app.add_option("-p,--print-freq,--log-interval", a.print_freq, "steps between reports")
      ->check(whole(1, kBillion))
      ->capture_default_str();
  app.add_flag("--quiet", a.quiet, "print only the summary");
  app.add_flag("--no-progress", a.no_progress, "print plain lines, even on a terminal");
  app.add_option("--trace", a.trace, "write a timeline of --trace-steps to this file, for Perfetto or Chrome")
      ->check(not_empty("a file"));
  app.add_flag("--profile", a.profile, "print the time of each layer in --trace-steps, and its lower bound");
  app.add_option("--trace-steps", a.trace_steps, "FIRST:COUNT, steps of this run, counted from 0 [10:10]");
  app.add_option("--summary", a.summary, "write the summary to this file, as one JSON object")
      ->check(not_empty("a file"));
}

// CLI11 rejects some repeated flags and takes the last value of others. This rejects every repeated single-value flag.
void refuse_repeats(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    if (option->get_items_expected_max() <= 1 && option->count() > 1)
      throw dp::Error(dp::ErrorCode::usage,
                      option->get_name() + " is given " + std::to_string(option->count()) + " times; give it once");
}

// CLI11 would take the next argument as the value of "--flag=".
void refuse_missing_values(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with("--") && word.size() > 3 && word.find('=') == word.size() - 1)
      throw dp::Error(dp::ErrorCode::usage, std::string(word.substr(0, word.size() - 1)) +
                                                ": no value after the '='; dp_train --help lists the flags");
  }
}

}  // namespace

std::optional<Arguments> parse_arguments(int argc, const char* const* argv) {
  Arguments arguments;
  CLI::App app("Trains a network on every device of this host, data-parallel, from one process.", "dp_train");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_version_flag("--version", "dp_train " DP_VERSION);
  app.get_formatter()->column_width(38);
  app.footer(
      "Exit codes: 0 ok, 1 unexpected, 2 usage, 3 bad data or checkpoint, 4 device, 5 non-finite, 6 timeout,\n7 I/O, "
      "130 and 143 after an interrupt, once a checkpoint is written.");
  add_what(app, arguments);
  add_devices(app, arguments);
  add_processes(app, arguments);
  add_training(app, arguments);
  add_parallel(app, arguments);
  add_order(app, arguments);
  add_run(app, arguments);
  app.add_subcommand("estimate-memory", "print the memory that this run needs on each replica, and exit")
      ->fallthrough()
      ->callback([&] { arguments.estimate_memory = true; });
  app.add_subcommand("env", "print devices, drivers and versions, and exit")->callback([&] {
    arguments.environment = true;
  });
  refuse_missing_values(argc, argv);
  try {
    app.parse(argc, argv);
    refuse_repeats(app);
  } catch (const CLI::Success& success) {
    app.exit(success);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw dp::Error(dp::ErrorCode::usage, std::string(error.what()) + "; dp_train --help lists the flags");
  }
  return arguments;
}

}  // namespace dp_train
