#include "flags.h"

#include <dp/run_options.h>
#include <cstdio>
#include <memory>
#include <string_view>

#include "comm.h"
#include "command_line/command_line.h"
#include "ops.h"
#include "pipeline.h"
#include "step.h"

namespace dp_bench {
namespace {

CLI::Validator whole(std::int64_t lowest, std::int64_t highest) {
  return command_line::accepts(dp::accepts::whole(lowest, highest));
}

CLI::Validator number(double lowest, double highest) {
  return command_line::accepts(dp::accepts::number(lowest, highest));
}

CLI::Validator one_of(std::vector<std::string> names) {
  return command_line::accepts(dp::accepts::one_of(std::move(names)));
}

CLI::Validator named() { return command_line::accepts(dp::accepts::text("a file")); }

void tell(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

void add_network(CLI::App& app, Network& network) {
  app.add_option("--model,--arch,-a", network.model, "network, see dp_train --list-models")->capture_default_str();
  app.add_option("--input", network.input, "sample shape: channels,rows,columns [by model]")
      ->delimiter(',')
      ->check(whole(1, 4096));
  app.add_option("--classes,--num-classes", network.classes, "number of classes [by model]")->check(whole(1, 100000));
}

// --gpus and --num-gpus, which exclude each other and --cpu.
void add_gpus(CLI::App& app, std::string& gpus, const std::string& initial, CLI::Option* cpu) {
  auto* ids = app.add_option("--gpus", gpus, "GPU ids (0,1), ranges (0-3), or all [" + initial + "]")->excludes(cpu);
  app.add_option_function<int>(
         "--num-gpus", [&gpus](int count) { gpus = count == 1 ? "0" : "0-" + std::to_string(count - 1); },
         "the first N GPUs")
      ->check(whole(1, 1024))
      ->excludes(cpu)
      ->excludes(ids);
}

// How often and how long each variant is measured.
void add_slices(CLI::App& app, StepOptions& o, const std::string& batches) {
  app.add_option("--rounds", o.rounds, "number of rounds; each round measures every variant once")
      ->check(whole(1, 100000))
      ->capture_default_str();
  app.add_option("--steps", o.steps, "steps of each variant per round [about --seconds]")->check(whole(1, 1000000));
  app.add_option("--seconds", o.seconds, "approximate time of each variant per round")
      ->check(number(0.001, 3600.0))
      ->capture_default_str();
  app.add_option("--warmup", o.warmup, "steps of each variant before the first round")
      ->check(whole(1, 100000))
      ->capture_default_str();
  app.add_option("--batches", o.batches, "number of distinct batches, used cyclically [" + batches + "]")
      ->check(whole(1, 100000));
  app.add_option("--timeout", o.timeout, "abandon a variant after N seconds without an answer")
      ->check(number(1.0, 86400.0))
      ->capture_default_str();
}

void add_rounds(CLI::App& app, StepOptions& o) {
  auto* cpu = app.add_option("--cpu", o.replicas, "number of CPU replicas, and of ddp ranks [2 if no GPU is usable]");
  cpu->check(whole(1, 256));
  add_gpus(app, o.gpus, "all, if one is usable", cpu);
  app.add_option("--replicas-per-device", o.replicas_per_device, "GPUs: add a dp variant with N replicas on each GPU")
      ->check(whole(1, 64))
      ->capture_default_str();
  app.add_option("--threads", o.threads, "total CPU threads of each variant [cores]")->check(whole(1, 1024));
  add_slices(app, o, "96 MiB");
  app.add_option("--python", o.python, "Python interpreter with PyTorch")->capture_default_str();
  app.add_option("--images-on", o.images_on,
                 "host: float32 batches from the host; device: device-resident bytes, augmented by each variant")
      ->check(one_of({"host", "device"}))
      ->capture_default_str();
}

struct Commands {
  StepOptions step, scaling;
  OpsOptions ops;
  CommOptions comm;
  std::string begin = "8", end = "128M";
  PipelineBench pipeline;
  std::vector<std::unique_ptr<command_line::Values>> given;
};

// Options of a run that every measurement takes as dp_train does.
void add_run(CLI::App& app, Commands& c, dp::TrainerOptions& run,
             const std::vector<std::string_view>& names = {"batch-size", "exact-conv", "amp", "amp-dtype"}) {
  command_line::Values& given = *c.given.emplace_back(std::make_unique<command_line::Values>());
  command_line::add_options(app, dp::run_options(), run, given, names);
  app.parse_complete_callback([&given, &run] { command_line::set_options(dp::run_options(), given, run); });
}

void add_step(CLI::App& app, Commands& c, Asked& asked) {
  StepOptions& o = c.step;
  add_network(app, o.network);
  add_run(app, c, o.run);
  add_rounds(app, o);
  app.add_option("--variants", o.variants, "variants to measure, by key: plan,dp1,dp-sharded,... [all]")
      ->delimiter(',');
  app.add_flag("--inference", o.inference, "measure evaluations, not training steps: forward and loss");
  app.add_flag("--goals", o.goals, "show the project's goal for each time ratio, and whether it is met");
  app.callback([&] {
    asked.work = [&o] {
      const StepOptions options = resolved(o);
      return step_report(measure_steps(options, variants_for(options), tell));
    };
  });
}

void add_ops(CLI::App& app, Commands& c, Asked& asked) {
  OpsOptions& o = c.ops;
  add_network(app, o.network);
  add_run(app, c, o.run);
  app.add_option("--threads", o.threads, "CPU threads [cores]")->check(whole(1, 1024));
  auto* cpu = app.add_flag("--cpu", o.on_cpu, "measure the CPU, also if a GPU is usable");
  app.add_option("--gpu,--gpus", o.gpu, "GPU id [the first, if one is usable]")->check(whole(0, 1023))->excludes(cpu);
  app.add_option("--rounds", o.rounds, "number of rounds")->check(whole(1, 100000))->capture_default_str();
  app.add_option("--steps", o.steps, "steps per round")->check(whole(1, 100000))->capture_default_str();
  app.add_option("--python", o.python, "Python interpreter with PyTorch")->capture_default_str();
  app.add_flag("--without-pytorch", o.without_pytorch, "skip the PyTorch measurements");
  app.callback([&] { asked.work = [&o] { return measure_ops(o, tell); }; });
}

void add_comm(CLI::App& app, Commands& c, Asked& asked) {
  CommOptions& o = c.comm;
  app.add_option("-b,--minbytes", c.begin, "smallest size: 8, 64K, 128M, ...")->capture_default_str();
  app.add_option("-e,--maxbytes", c.end, "largest size")->capture_default_str();
  app.add_option("-f,--stepfactor", o.factor, "factor between sizes")->check(number(1.1, 1e6))->capture_default_str();
  auto* cpu = app.add_option("--cpu", o.ranks, "number of CPU ranks [2, if fewer than two GPUs are usable]");
  cpu->check(whole(2, 256));
  add_gpus(app, o.gpus, "all, if two are usable", cpu);
  app.add_option("--threads", o.threads, "threads per rank")->check(whole(1, 1024))->capture_default_str();
  app.add_option("--rounds", o.rounds, "number of rounds")->check(whole(1, 100000))->capture_default_str();
  app.add_option("--seconds", o.seconds, "approximate time of each size per round")
      ->check(number(1e-4, 60.0))
      ->capture_default_str();
  app.add_option("--collectives", o.collectives, "collectives to measure: all_reduce,broadcast,... [all]")
      ->delimiter(',')
      ->check(one_of(collective_names()));
  app.add_option("--communicators", o.communicators,
                 "communicators to measure: host,host-processes,mpi,p2p,nccl,nccl-processes [all]")
      ->delimiter(',');
  app.callback([&] {
    asked.work = [&c] {
      c.comm.begin = parse_bytes("-b", c.begin);
      c.comm.end = parse_bytes("-e", c.end);
      return measure_comm(c.comm, tell);
    };
  });
}

void add_scaling(CLI::App& app, Commands& c, Asked& asked) {
  StepOptions& o = c.scaling;
  add_network(app, o.network);
  add_run(app, c, o.run);
  add_rounds(app, o);
  app.callback([&] { asked.work = [&o] { return measure_scaling(o, tell); }; });
}

void add_pipeline(CLI::App& app, Commands& c, Asked& asked) {
  PipelineBench& o = c.pipeline;
  o.step.network.model = "resnet50";
  o.step.run.batch_size = 120;
  o.step.run.parallel.pipeline.stages = 2;
  o.step.warmup = 2;
  o.step.batches = 4;
  add_network(app, o.step.network);
  add_run(app, c, o.step.run, {"batch-size", "exact-conv", "pipeline-stages", "pipeline-split"});
  app.add_option("--schedules", o.schedules, "schedules to measure: none,gpipe,1f1b,zb-h1 [gpipe,1f1b,zb-h1]")
      ->delimiter(',')
      ->check(one_of({"none", "gpipe", "1f1b", "zb-h1"}));
  app.add_option("--split-sizes", o.split_sizes, "images of a micro-batch: 1,4,20,... [1 to the whole batch]")
      ->delimiter(',')
      ->check(whole(1, 1 << 20));
  app.add_flag("--accumulate", o.accumulate, "also measure the single device with the same micro-batches");
  app.add_option("--cpu", o.step.replicas, "number of CPU devices, a multiple of the stages [one replica]")
      ->check(whole(2, 256));
  app.add_option("--threads", o.step.threads, "total CPU threads of all devices [one per device]")
      ->check(whole(1, 1024));
  add_slices(app, o.step, "4");
  app.callback([&] { asked.work = [&o] { return measure_pipeline(o, tell); }; });
}

}  // namespace

std::optional<Asked> parse_arguments(int argc, const char* const* argv) {
  static Commands commands;
  static Asked asked;
  CLI::App app("Measures training steps, ops and collectives.", "dp_bench");
  app.require_subcommand(1);
  app.fallthrough();
  app.set_version_flag("--version", DP_VERSION);
  app.add_option("--json", asked.output.json, "write all results to this file, as JSON")->check(named());
  app.add_option("--html", asked.output.html, "write a page with charts to this file")->check(named());
  app.add_option("--markdown", asked.output.markdown, "write the tables to this file")->check(named());
  add_step(*app.add_subcommand("step", "training step of one model in every variant, interleaved"), commands, asked);
  add_ops(*app.add_subcommand("ops", "each op of a training step, with its lower bound and PyTorch's time"), commands,
          asked);
  add_comm(*app.add_subcommand("comm", "every collective of every communicator, with the columns of nccl-tests"),
           commands, asked);
  add_scaling(*app.add_subcommand("scaling", "training step on 1, 2, ... devices, with the same global batch"),
              commands, asked);
  add_pipeline(*app.add_subcommand("pipeline", "a model split over devices: every schedule and size of micro-batches"),
               commands, asked);
  if (!command_line::parse(app, argc, argv)) return {};
  return asked;
}

}  // namespace dp_bench
