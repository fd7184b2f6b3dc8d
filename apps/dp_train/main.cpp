// dp_train: trains a network from the command line.
#include <dp/dp.h>
#include <cstdio>
#include <exception>
#include <new>

#include "arguments.h"
#include "devices.h"
#include "estimate.h"
#include "options.h"
#include "signals.h"

namespace dp_train {
namespace {

void list_models() {
  for (const dp::models::Entry& entry : dp::models::registry())
    std::printf("%-16s %s\n", entry.name.c_str(), entry.summary.c_str());
}

int run(const Arguments& arguments, const std::atomic<int>& stop) {
  if (arguments.list_models) {
    list_models();
    return 0;
  }
  if (arguments.environment) {
    std::printf("dp_train    %s\n%s", DP_VERSION, dp::describe_environment().c_str());
    return 0;
  }
  const Devices devices = choose_devices(arguments);
  const dp::models::Entry& entry = dp::models::find(arguments.model);
  dp::TrainerOptions options = trainer_options(arguments, entry.recipe, devices.list);
  if (arguments.estimate_memory) {
    estimate_memory(arguments, entry, options.dataset_name, options.batch_size, options.parallel);
    return 0;
  }
  if (!devices.notice.empty() && !arguments.quiet) std::printf("%s\n", dp::printable(devices.notice).c_str());

  const dp::DatasetPair data = dp::datasets::open(options.dataset_name, arguments.data_path, arguments.seed);
  const dp::Model model = entry.make(data.train->image_shape(), data.train->classes());
  const OutputFolder folder = output_folder(arguments);
  options.output_dir = folder.path();
  options.stop = &stop;
  dp::Trainer trainer(model, data, options);
  if (arguments.print_plan) {
    std::printf("%s", trainer.net().describe_plan(options.batch_size).c_str());
    return 0;
  }
  const dp::TrainerCallbacks console =
      dp::console_callbacks({.quiet = arguments.quiet, .progress = !arguments.no_progress});
  const dp::RunSummary summary = arguments.evaluate ? trainer.evaluate(console) : trainer.run(console);
  dp::print_summary(summary);
  return summary.interrupted ? 128 + stop.load() : 0;
}

int fail(int code, const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "dp_train: error: %s\n", dp::printable(what).c_str());
  return code;
}

int guarded(int argc, const char* const* argv) try {
  const auto arguments = parse_arguments(argc, argv);
  return arguments ? run(*arguments, watch_signals()) : 0;
} catch (const dp::Error& error) {
  const std::size_t others = error.others().size();
  return fail(static_cast<int>(error.code()),
              error.what() + (others ? " (" + std::to_string(others) + " other replicas failed too)" : std::string()));
} catch (const std::bad_alloc&) {
  return fail(static_cast<int>(dp::ErrorCode::device), "out of host memory; use a smaller --batch-size");
} catch (const std::exception& error) {
  return fail(1, std::string("unexpected: ") + error.what());
}

}  // namespace
}  // namespace dp_train

int main(int argc, char** argv) { return dp_train::guarded(argc, argv); }
