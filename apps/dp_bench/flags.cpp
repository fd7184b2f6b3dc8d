#include "flags.h"

#include <dp/error.h>
#include <cstdio>

#include "step.h"

namespace dp_bench {
namespace {

CLI::Validator whole(std::int64_t lowest, std::int64_t highest) {
  return CLI::Validator(
      [=](std::string& text) {
        std::int64_t value = 0;
        const bool good = CLI::detail::lexical_cast(text, value) && value >= lowest && value <= highest;
        return good ? std::string()
                    : "'" + text + "' is not a whole number from " + std::to_string(lowest) + " to " +
                          std::to_string(highest);
      },
      "");
}

void tell(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

void add_network(CLI::App& app, Network& network) {
  app.add_option("--model,--arch,-a", network.model, "a network of dp_train --list-models")->capture_default_str();
  app.add_option("--input", network.input, "shape of a sample: channels,rows,columns [by model]")
      ->delimiter(',')
      ->check(whole(1, 4096));
  app.add_option("--classes", network.classes, "[by model]")->check(whole(1, 100000));
}

void add_rounds(CLI::App& app, StepOptions& o) {
  auto* cpu = app.add_option("--cpu", o.replicas, "N CPU replicas, and N ranks of ddp")->check(whole(1, 256));
  cpu->capture_default_str();
  app.add_option("--gpus", o.gpus, "ids 0,1, ranges 0-3, or all")->excludes(cpu);
  app.add_option("--threads", o.threads, "CPU threads of each variant in all [cores]")->check(whole(1, 1024));
  app.add_option("--rounds", o.rounds, "every variant once in each")->check(whole(1, 100000))->capture_default_str();
  app.add_option("--steps", o.steps, "of a variant in a round [as many as take --seconds]")->check(whole(1, 1000000));
  app.add_option("--seconds", o.seconds, "of a variant in a round, about")
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str();
  app.add_option("--warmup", o.warmup, "steps before the first round")->check(whole(1, 100000))->capture_default_str();
  app.add_option("--batches", o.batches, "different batches, used in turn [96 MiB of them]")->check(whole(1, 100000));
  app.add_option("--python", o.python, "a Python that has PyTorch")->capture_default_str();
  app.add_flag("--fast-conv", o.fast_conv, "as dp_train's");
  app.add_option("--timeout", o.timeout, "seconds without an answer after which a variant is given up")
      ->check(CLI::Range(1.0, 86400.0))
      ->capture_default_str();
}

struct Commands {
  StepOptions step;
};

void add_step(CLI::App& app, StepOptions& options, Asked& asked) {
  add_network(app, options.network);
  app.add_option("-b,--batch-size", options.batch, "global")->check(whole(1, 1 << 20))->capture_default_str();
  add_rounds(app, options);
  app.add_option("--variants", options.variants, "only these, by their keys: plan,dp1,dp-sharded,... [all]")
      ->delimiter(',');
  app.callback([&] { asked.work = [&options] { return step_report(measure_steps(resolved(options), tell)); }; });
}

}  // namespace

std::optional<Asked> parse_arguments(int argc, const char* const* argv) {
  static Commands commands;
  static Asked asked;
  CLI::App app("dp_bench: measures training steps, ops and collectives, and models what is not there");
  app.require_subcommand(1);
  app.fallthrough();
  app.set_version_flag("--version", DP_VERSION);
  app.add_option("--json", asked.output.json, "write every figure to this file");
  app.add_option("--html", asked.output.html, "write a page with bars to this file");
  add_step(*app.add_subcommand("step", "one model's training step in every variant, in turns"), commands.step, asked);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asks_for_text) {
    app.exit(asks_for_text);
    return {};
  } catch (const CLI::ParseError& error) {
    throw dp::Error(dp::ErrorCode::usage, std::string(error.what()) + "; dp_bench --help lists what there is");
  }
  return asked;
}

}  // namespace dp_bench
