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
  app.add_option("--model,--arch,-a", a.model, "the network; --list-models names them")->capture_default_str();
  app.add_flag("--list-models", a.list_models, "print the networks and leave");
  app.add_option("--dataset", a.dataset,
                 "digits (drawn, always there), mnist, fashion_mnist, cifar10, cifar100, imagefolder, synthetic "
                 "(random bytes) [by model]");
  app.add_option("--data-path,--data-dir", a.data_path, "where the files are")
      ->check(not_empty("a folder"))
      ->capture_default_str();
  app.add_option("--input", a.input, "synthetic: C,H,W of an image [1,28,28]");
  app.add_option("--classes,--num-classes", a.classes, "synthetic: number of classes [10]")->check(whole(1, 1 << 20));
  app.add_option("--images", a.images, "synthetic: number of training images; a sixth as many for the test [60000]")
      ->check(whole(1, 1 << 26));
}

void add_devices(CLI::App& app, Arguments& a) {
  app.option_defaults()->group("Devices");
  auto* gpus = app.add_option("--gpus", a.gpus, "ids 0,1, ranges 0-3, or all [all visible]");
  auto* num_gpus = app.add_option("--num-gpus", a.num_gpus, "the first N GPUs")->check(whole(1, 1024));
  auto* cpu = app.add_option("--cpu", a.cpu, "N replicas on the CPU [2 when no GPU is usable]")->check(whole(1, 256));
  gpus->excludes(num_gpus)->excludes(cpu);
  num_gpus->excludes(cpu);
  app.add_option("--replicas-per-device", a.replicas_per_device, "replicas on each device")
      ->check(whole(1, 64))
      ->capture_default_str();
  app.add_option("--threads-per-replica", a.threads_per_replica, "threads of a CPU replica [cores / replicas]")
      ->check(whole(1, 1024));
}

void add_processes(CLI::App& app, Arguments& a) {
  app.option_defaults()->group("Processes");
  app.add_option(
         "--engine", a.engine,
         "dp: one process drives all devices; ddp: one process a device, started by this one, torchrun, or mpirun")
      ->check(CLI::IsMember({"dp", "ddp"}))
      ->capture_default_str();
  app.add_option("--nnodes", a.nnodes, "ddp: hosts, each started with the same command but --node-rank")
      ->check(whole(1, 1024))
      ->capture_default_str();
  app.add_option("--node-rank", a.node_rank, "ddp: which of the hosts this is; 0 is the one that the others come to")
      ->check(whole(0, 1023))
      ->capture_default_str();
  app.add_option("--master-addr", a.master_addr,
                 "ddp: address of host 0; it listens there and nowhere else [127.0.0.1]")
      ->check(not_empty("a host"));
  app.add_option("--master-port", a.master_port, "ddp: its port [a free one; with several hosts 29500]")
      ->check(whole(1, 65535));
  app.add_option(
         "--timeout", a.timeout,
         "seconds without a move of any replica after which the run ends with exit code 6, and that a missing rank is "
         "waited for; 0: no watchdog")
      ->check(real(0, 1e6))
      ->capture_default_str();
}

void add_training(CLI::App& app, Arguments& a) {
  app.option_defaults()->group("Training");
  auto* batch =
      app.add_option("-b,--batch-size", a.batch_size, "global, per optimizer step [128]")->check(whole(1, 1 << 20));
  app.add_option("--batch-size-per-gpu", a.batch_size_per_gpu, "per replica instead")
      ->check(whole(1, 1 << 20))
      ->excludes(batch);
  app.add_option("--epochs", a.epochs, "[by data set]")->check(whole(1, kBillion));
  app.add_option("--max-steps", a.max_steps, "stop after so many optimizer steps of the whole run")
      ->check(whole(1, kBillion));
  app.add_option("--lr", a.lr, "learning rate [by model]")->check(real(0, 1e6));
  app.add_option("--momentum", a.momentum, "[by model]")->check(below(0, 1));
  app.add_flag("--nesterov,!--no-nesterov", a.nesterov, "Nesterov's momentum [by model]");
  app.add_option("--weight-decay,--wd", a.weight_decay, "[by model]")->check(real(0, 1e6));
  app.add_option("--lr-scale", a.lr_scale, "none, or linear: the rate times the number of replicas")
      ->check(CLI::IsMember({"none", "linear"}))
      ->capture_default_str();
  app.add_option("--lr-scheduler", a.lr_scheduler, "constant, step, multistep, cosine [by model]");
  app.add_option("--lr-step-size", a.lr_step_size, "step: epochs between drops [1]")->check(real(1e-6, 1e9));
  app.add_option("--lr-gamma", a.lr_gamma, "step, multistep: the factor of a drop [0.1]")->check(real(0, 1e6));
  app.add_option("--lr-milestones", a.lr_milestones, "multistep: epochs, ascending [50 % and 75 % of the epochs]")
      ->delimiter(',')
      ->check(real(0, 1e9))
      ->take_all();
  app.add_option("--lr-warmup-epochs", a.lr_warmup_epochs, "linear warm-up")->check(real(0, 1e9));
  app.add_option("--grad-accum-steps", a.grad_accum_steps, "split -b into so many micro-batches")
      ->check(whole(1, 1 << 20));
  app.add_option("--clip-grad-norm", a.clip_grad_norm, "largest L2 norm of the whole gradient")->check(positive(1e12));
  app.add_option("--label-smoothing", a.label_smoothing, "in [0, 1)")->check(below(0, 1))->capture_default_str();
  app.add_option("--on-nonfinite", a.on_nonfinite, "a step with NaN or Inf: abort, skip")
      ->check(CLI::IsMember({"abort", "skip"}))
      ->capture_default_str();
  app.add_flag("--amp", a.amp, "mixed precision, on GPUs: activations and the weights that layers read in 16 bits");
  app.add_option("--amp-dtype", a.amp_dtype, "its type: bfloat16, or float16 with a scaled loss [bfloat16]")
      ->check(CLI::IsMember({"bfloat16", "float16"}));
  app.add_flag("--model-ema", a.model_ema, "keep a moving average of the weights, and evaluate it too");
  app.add_option("--model-ema-decay", a.model_ema_decay, "its decay a step; in [0, 1)")
      ->check(below(0, 1))
      ->capture_default_str();
}

void add_parallel(CLI::App& app, Arguments& a) {
  app.option_defaults()->group("Data parallelism");
  app.add_option("--reduce", a.reduce, "where gradients are summed: auto, master, allreduce, sharded")
      ->check(CLI::IsMember({"auto", "master", "allreduce", "sharded"}))
      ->capture_default_str();
  app.add_option("--reduce-dtype", a.reduce_dtype,
                 "in which gradients are summed: float32, or bfloat16: half their bytes, each rounded before and after")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  app.add_option(
         "--comm", a.comm,
         "what carries data between replicas: auto, host (CPU), p2p (GPUs of a process), nccl (distinct GPUs), tcp, "
         "mpi (CPU, ddp)")
      ->check(CLI::IsMember({"auto", "host", "p2p", "nccl", "tcp", "mpi"}))
      ->capture_default_str();
  app.add_option("--loss", a.loss, "local (on each replica) or gathered (on the master)")
      ->check(CLI::IsMember({"local", "gathered"}))
      ->capture_default_str();
  app.add_option("--split", a.split, "balanced, or chunk (torch.chunk)")
      ->check(CLI::IsMember({"balanced", "chunk"}))
      ->capture_default_str();
  app.add_option("--bucket-mb", a.bucket_mb, "size of a gradient bucket in MiB [by model]")->check(real(0.001, 65536));
  auto* bn = app.add_option("--bn", a.bn,
                            "batch normalisation: master (each shard by itself), pooled (running statistics of the "
                            "whole batch), sync (statistics of the whole batch)")
                 ->check(CLI::IsMember({"master", "pooled", "sync"}))
                 ->capture_default_str();
  app.add_flag("--sync-bn", a.sync_bn, "the same as --bn sync")->excludes(bn);
  app.add_option("--logical-shards", a.logical_shards,
                 "equal bits on every number of replicas that divides it; implies --deterministic")
      ->check(whole(1, 4096));
  app.add_option("--graphs", a.graphs,
                 "GPUs: launch training steps as CUDA graphs: auto (not with nccl between several GPUs of a process), "
                 "always (or fail), never [auto]")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  app.add_flag("--no-graphs", a.no_graphs, "the same as --graphs never");
  app.add_flag("--no-autotune", a.no_autotune,
               "GPUs: take kernels by the shapes alone, without trying which are fastest");
  app.add_flag("--fast-conv", a.fast_conv, "convolutions that round more and take less time (CPU: Winograd)");
  app.add_flag("--tf32", a.tf32, "GPUs: float32 layers may round what they multiply to TF32, where that is faster");
  app.add_flag("--check-replicas", a.check_replicas, "verify after every step that the replicas are bit-identical");
}

void add_order(CLI::App& app, Arguments& a) {
  app.option_defaults()->group("Randomness and order");
  app.add_option("--seed", a.seed, "")->check(seed_number())->capture_default_str();
  app.add_flag("--deterministic", a.deterministic, "bit-identical runs and resumes on the same devices");
  app.add_flag("--no-augment", a.no_augment, "");
  app.add_flag("--no-shuffle", a.no_shuffle, "");
  app.add_flag("--no-dropout", a.no_dropout, "");
  app.add_flag("--drop-last", a.drop_last, "leave out an epoch's short last batch");
  app.add_option("-j,--workers", a.workers, "loader threads [cores left over, 1 to 4]")->check(whole(1, 256));
  app.add_option("--images-on", a.images_on,
                 "where the images lie: host, device (as bytes; it makes its batches itself), auto: GPUs with room")
      ->check(CLI::IsMember({"auto", "host", "device"}))
      ->capture_default_str();
}

void add_run(CLI::App& app, Arguments& a) {
  app.option_defaults()->group("The run");
  app.add_option("--output-dir", a.output_dir, "the run's folder [runs/<time>_<model>]")->check(not_empty("a folder"));
  app.add_option("--experiment", a.experiment, "a name for it: <output-dir>/<experiment>, below runs/ by default");
  app.add_option("--resume", a.resume,
                 "go on from a checkpoint or run folder; auto: from --output-dir's newest, if any")
      ->check(not_empty("a checkpoint, a run folder, or auto"));
  app.add_option("--init", a.init, "weights to start from, a safetensors file")->check(not_empty("a file"));
  app.add_flag("--init-partial", a.init_partial, "take the tensors that fit, and name the others");
  app.add_option("--save-every", a.save_every, "epochs between checkpoints; 0: only at the end")
      ->check(whole(0, kBillion))
      ->capture_default_str();
  app.add_option("--save-every-steps", a.save_every_steps, "optimizer steps between checkpoints, besides")
      ->check(whole(1, kBillion));
  app.add_option("--checkpoint-hist", a.checkpoint_hist, "so many of the latest checkpoints are kept as step-N")
      ->check(whole(0, 1 << 20))
      ->capture_default_str();
  app.add_flag("-e,--evaluate,--test-only", a.evaluate, "only evaluate --init's or --resume's weights");
  app.add_flag("--dry-run", a.dry_run, "one training and one evaluation batch, no files");
  app.add_flag("--print-plan", a.print_plan, "print how a step is laid out in memory, and leave");
  app.add_option("-p,--print-freq,--log-interval", a.print_freq, "steps between reports")
      ->check(whole(1, kBillion))
      ->capture_default_str();
  app.add_flag("--quiet", a.quiet, "only the summary");
  app.add_flag("--no-progress", a.no_progress, "plain lines on a terminal too");
  app.add_option("--trace", a.trace, "write a timeline of some steps to this file, for Perfetto or Chrome")
      ->check(not_empty("a file"));
  app.add_flag("--profile", a.profile, "print what each layer took in some steps, beside the least that it could take");
  app.add_option("--trace-steps", a.trace_steps, "FIRST:COUNT, of this run's steps, counted from 0 [10:10]");
  app.add_option("--summary", a.summary, "write the result as one JSON object to this file")
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
                                                ": nothing follows the '='; dp_train --help lists the flags");
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
  app.add_subcommand("estimate-memory", "print what such a run would take on each replica, and leave")
      ->fallthrough()
      ->callback([&] { arguments.estimate_memory = true; });
  app.add_subcommand("env", "print devices, drivers and versions, for a report, and leave")->callback([&] {
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
