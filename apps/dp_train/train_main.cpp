// dp::train_main(): the whole of dp_train.
#include <dp/dp.h>
#include <dp/train_main.h>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>

#include "command.h"
#include "command_line/commit.h"
#include "devices.h"
#include "fetch/sources.h"
#include "images.h"
#include "predict.h"
#include "signals.h"
#include "subcommands.h"
#include "supervisor.h"
#include "trainer_options.h"

namespace dp_train {
namespace {

void list_models() {
  for (const dp::models::Entry& entry : dp::models::registry())
    std::printf("%-18s %s\n", entry.name.c_str(), entry.summary.c_str());
}

void list_datasets() {
  std::printf("%-13s  %-13s  %7s  %6s  %s\n", "data set", "image", "classes", "epochs", "network");
  for (const dp::datasets::Entry& entry : dp::datasets::registry())
    std::printf("%-13s  %-13s  %7lld  %6lld  %-13s  %s\n", entry.name.c_str(), dp::to_string(entry.image).c_str(),
                static_cast<long long>(entry.classes), static_cast<long long>(entry.epochs), entry.model.c_str(),
                entry.note.c_str());
}

// Exit code of commands that only print.
int code_of() {
  if (const int number = received_signal(); number != 0) return 128 + number;
  dp::flush_stdout();
  return 0;
}

void warn(const std::string& text) {
  if (!text.empty()) std::fprintf(stderr, "%s: warning: %s\n", program().name.c_str(), dp::printable(text).c_str());
}

// A run that began with an ONNX file resumes with the network of its checkpoint, which rank 0 reads. The file may be
// gone.
void use_recorded_network(const Command& command, const std::vector<dp::RecordedOption>& recorded,
                          dp::ProcessGroup* group) {
  const auto model = std::ranges::find(recorded, "model", &dp::RecordedOption::name);
  if (model == recorded.end() || model->texts.size() != 1 || !model->texts[0].ends_with(".onnx")) return;
  const bool chosen = command.trainer.resume == "auto";
  std::string network;
  if (group == nullptr || group->leads()) {
    if (group != nullptr) group->busy(true);
    try {
      network = dp::to_json(dp::read_trained_model(chosen ? named_folder(command) : command.trainer.resume).model);
    } catch (const dp::Error&) {  // every rank reads the file instead
    }
    if (group != nullptr) group->busy(false);
  }
  if (group != nullptr) network = group->from_first(network);
  if (!network.empty()) dp::models::use_network(model->texts[0], {.model = dp::model_from_json(network)});
}

// The command, with the options of the run that it resumes. Rank 0 reads them.
Command with_recorded_options(const Command& command, const std::shared_ptr<dp::ProcessGroup>& group) {
  if (command.trainer.resume.empty()) return command;
  std::string config;
  if (!group || group->leads()) {
    if (group) group->busy(true);  // checksums may take longer than the timeout
    config = dp::resumed_config(command.trainer.resume, named_folder(command));
    if (group) group->busy(false);
  }
  if (group) config = group->from_first(config);
  if (config.empty()) return complete(command, {});
  const std::vector<dp::RecordedOption> recorded = dp::recorded_options(config);
  use_recorded_network(command, recorded, group.get());
  return complete(command, recorded);
}

dp::RunSummary run_or_evaluate(dp::Trainer& trainer, const Command& command, const dp::TrainerCallbacks& console,
                               const dp::ProcessGroup* group) {
  try {
    return command.evaluate ? trainer.evaluate(console) : trainer.run(console);
  } catch (const dp::Error& error) {
    if (error.code() != dp::ErrorCode::data || !decodes_files(command.trainer.dataset_name)) throw;
    if (command.bad_images == "skip" || (group != nullptr && group->failure())) throw;  // the failed rank has added it
    throw dp::Error(error.code(),
                    error.what() + std::string("; dp_train check-data lists all bad images; "
                                               "--bad-images skip skips them"),
                    error.others());
  }
}

// Each rank has its own file. Ranks on other hosts may lack the folder.
std::string crash_file(const std::string& folder_of_leader, dp::ProcessGroup* group) {
  const std::string folder = group == nullptr ? folder_of_leader : group->from_first(folder_of_leader);
  if (folder.empty()) return "";
  const int rank = group == nullptr ? 0 : group->rank();
  return folder + (rank == 0 ? "/crash.json" : "/crash.rank" + std::to_string(rank) + ".json");
}

// Runs this process: the whole run, or one rank of it.
int train(const Command& given, Devices devices, const std::shared_ptr<dp::ProcessGroup>& group, Signals& signals) {
  const bool leads = !group || group->leads();
  check_resume(given);
  const Command command = with_recorded_options(given, group);
  if (may_leave_out_gpus() && !group) fit_to_layout(devices, command);
  const dp::models::Entry& entry = dp::models::find(command.model);
  dp::TrainerOptions options = trainer_options(command, devices.list, group);
  if (leads)
    warn(ignored_launcher(command, group != nullptr)), warn(devices.warning),
        warn(without_effect(command, devices.list.front().kind));
  if (command.estimate_memory) {
    estimate_memory(command, entry, options);
    return code_of();
  }
  if (command.save_config) {
    if (leads) dp::save_config(*command.save_config, command.model, options);
    return code_of();
  }
  std::optional<dp::TrainerCallbacks> console =
      dp::console_callbacks({.quiet = command.quiet || command.print_plan || !leads, .progress = !command.no_progress});
  const bool prints = leads && !command.quiet && !command.print_plan;
  if (prints && !devices.notice.empty()) console->on_message(devices.notice);
  console->on_work({"Reading images"});
  const dp::DatasetPair data = match_classes(command, options, open_images(command, options.dataset_name));
  console->on_work({"Reading images", 1, 1});
  if (prints) std::printf("%s\n", dp::describe_data(data).c_str());
  const dp::Model model = entry.make(data.train->image_shape(), data.train->classes());
  if (prints)
    for (const std::string& notice : entry.notices) console->on_message(command.model + ": " + notice);
  if (entry.first_weights) options.first_weights = [&] { return entry.first_weights(*data.train); };
  const OutputFolder folder = leads ? output_folder(command) : OutputFolder("");
  options.output_dir = folder.path();
  handle_crashes(crash_file(folder.path(), group.get()));
  options.resumed_with = device_options(command);
  options.program = program().version + ", commit " + command_line::kCommit;
  if (!command.evaluate && !command.print_plan) dp::require_memory(model, data, options);
  options.stop = &signals.received;
  options.unsaved = &signals.unsaved;
  const char* const work = options.measure_split ? "Measuring the devices' speeds" : "Planning layers";
  console->on_work({work});
  dp::Trainer trainer(model, data, options);
  console->on_work({work, 1, 1});
  if (command.print_plan) {
    if (leads) std::printf("%s", trainer.net().describe_plan(options.batch_size).c_str());
    return code_of();
  }
  const dp::RunSummary summary = run_or_evaluate(trainer, command, *console, group.get());
  console.reset();  // ends an open progress line
  if (leads) dp::print_summary(summary, options.resumed_with);
  try {
    if (leads) dp::flush_stdout();
  } catch (const dp::Error& error) {
    // With a run folder the result is on disk, so this is only a warning. Without one, stdout is the result.
    if (folder.path().empty() && !summary.interrupted) throw;
    warn(error.what());
  }
  const int number = received_signal();
  return summary.interrupted ? 128 + (number != 0 ? number : SIGINT) : 0;  // 0: another rank got the signal
}

// Whether this rank failed because of a signal: it was still joining the process group, or another rank left.
bool ended_by_signal(const dp::ProcessGroup* group, dp::ErrorCode code, Signals& signals) {
  if (received_signal() == 0) return false;
  if (group == nullptr) return true;
  // A lost connection to another rank is an error of the device, and so is a failure of this device. Rank 0 reports a
  // lost rank, perhaps later: wait up to 10 s. Meanwhile the signal thread must not end this process.
  signals.unsaved.store(true);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (code == dp::ErrorCode::device && !group->failure() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  return group->failure().has_value();
}

int run(const Command& command, char* const* argv, std::shared_ptr<dp::ProcessGroup>& group, Signals& signals) {
  if (command.list_models) {
    list_models();
    return code_of();
  }
  if (command.list_datasets) {
    list_datasets();
    return code_of();
  }
  if (!command.report_runs.empty()) {
    const std::string beside =
        command.report_runs.size() == 1 ? command.report_runs.front() + "/report.html" : "report.html";
    const std::string file = command.report_file.value_or(beside);
    dp::write_report(command.report_runs, file);
    std::printf("%s\n", dp::printable(file).c_str());
    return code_of();
  }
  if (!command.status_run.empty()) {
    std::printf("%s", dp::describe_run(command.status_run).c_str());
    return code_of();
  }
  if (!command.convert.empty()) {
    convert(command);
    return code_of();
  }
  if (!command.exported.from.empty()) {
    export_network(command.exported);
    return code_of();
  }
  if (!command.fetch.empty())
    start_fetch(source(command.fetch), {command.data_path, command.mirror, command.quiet, !command.no_progress});
  if (command.environment) {
    std::printf("%-11s %s\n%s", "dp_train", DP_VERSION, dp::describe_environment().c_str());
    return code_of();
  }
  if (command.check_data) {
    const bool good = check_data(command);
    return good || signals.received.load() != 0 ? code_of() : static_cast<int>(dp::ErrorCode::data);
  }
  if (!command.predict.checkpoint.empty()) return predict(command, signals);
  signals.forwarded = is_supervised();
  check_processes(command);
  if (command.selftest) {
    const Devices devices = choose_devices(command);
    warn(devices.warning);
    if (!devices.notice.empty()) std::printf("%s\n", dp::printable(devices.notice).c_str());
    const bool good = selftest(devices.list, signals.received);
    return good || signals.received.load() != 0 ? code_of() : static_cast<int>(dp::ErrorCode::device);
  }
  if (command.engine == "dp") return train(command, choose_devices(command), nullptr, signals);
  const auto rank = rank_of_this_process(command, signals.received);
  if (!rank) {
    warn(ignored_launcher(command, /*is_rank=*/false));
    return start_ranks(command, argv, signals);
  }
  signals.announces = rank->rank == 0;
  signals.forwarded = true;
  try {
    group = dp::ProcessGroup::join(*rank);
    return train(command, device_of_rank(command, *group), group, signals);
  } catch (const dp::Error& error) {
    if (!ended_by_signal(group.get(), error.code(), signals)) throw;
    return code_of();
  }
}

int fail(int code, const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: error: %s\n", program().name.c_str(), dp::printable(what).c_str());
  return code;
}

// Prints the error first, then reports it to the other ranks.
int fail_rank(const std::shared_ptr<dp::ProcessGroup>& group, const dp::Error& error) {
  const int code = static_cast<int>(error.code());
  if (!group) {
    const std::size_t others = error.others().size();
    const char* const replicas = others == 1 ? " other replica failed too)" : " other replicas failed too)";
    return fail(code, error.what() + (others ? " (" + std::to_string(others) + replicas : std::string()));
  }
  const std::string name = "rank " + std::to_string(group->rank());
  if (const auto cause = group->failure()) {
    // The local error may add details to the cause, e.g. the position of this rank.
    const bool more = std::string(error.what()).starts_with(cause->what());
    return fail(static_cast<int>(cause->code()), name + " stops: " + (more ? error.what() : cause->what()));
  }
  fail(code, name + ": " + error.what());
  group->fail(error);
  return code;
}

int guarded(int argc, char* const* argv) {
  std::shared_ptr<dp::ProcessGroup> group;
  try {
    if (may_supervise(argc, argv)) {
      const auto command = parse_command(argc, argv);
      if (!command) return code_of();
      if (needs_supervisor(*command)) return supervise(*command, argv);
    }
    Signals& signals = handle_signals();
    handle_crashes();
    const auto command = parse_command(argc, argv);
    return command ? run(*command, argv, group, signals) : code_of();
  } catch (const dp::Error& error) {
    const int code = fail_rank(group, error);
    const bool stalled = code == static_cast<int>(dp::ErrorCode::timeout);  // the step that a signal waited for
    const int number = received_signal();
    return stalled && number != 0 ? 128 + number : code;
  } catch (const std::bad_alloc&) {
    return fail_rank(group,
                     dp::Error(dp::ErrorCode::device,
                               "out of host memory; use a smaller batch or fewer replicas, or raise ulimit -v and -d"));
  } catch (const std::exception& error) {
    if (group) group->fail(dp::Error(dp::ErrorCode::device, error.what()));
    return fail(1, std::string("unexpected: ") + error.what());
  }
}

}  // namespace
}  // namespace dp_train

int dp::train_main(int argc, char** argv) {
  dp::open_standard_descriptors();
  dp::return_freed_memory();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file-size limit then fails with EFBIG
  if (argc > 0) dp_train::set_program(std::filesystem::path(argv[0]).filename().string());
  return dp_train::guarded(argc, argv);
}
