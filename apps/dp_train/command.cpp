#include "command.h"

#include <dp/dataset.h>
#include <dp/models.h>

#include "command_line/command_line.h"

namespace dp_train {
namespace {

// The recipe's options, for what the command line does not give.
void set_defaults(dp::TrainerOptions& options, const dp::models::Recipe& recipe, bool dataset_given) {
  if (!dataset_given) options.dataset_name = recipe.dataset;
  options.epochs = dp::datasets::find(options.dataset_name).epochs;
  options.optimizer = dp::Sgd{
      .lr = recipe.lr, .momentum = recipe.momentum, .nesterov = recipe.nesterov, .weight_decay = recipe.weight_decay};
  options.schedule.kind = recipe.schedule;
}

// Milestones are parts of the number of epochs, unless they are given.
void set_milestones(dp::TrainerOptions& options, const dp::models::Recipe& recipe) {
  if (options.schedule.kind != dp::ScheduleKind::multistep || !options.schedule.milestones.empty()) return;
  const std::vector<double> halves{0.5, 0.75};
  for (const double part : recipe.milestones.empty() ? halves : recipe.milestones)
    options.schedule.milestones.push_back(part * static_cast<double>(options.epochs));
}

void read(const command_line::Given<Command>& given, Command& command) {
  given.apply("list-models", command);
  if (command.list_models || command.environment) return;
  given.apply("model", command);
  given.apply("dataset", command);
  const dp::models::Recipe& recipe = dp::models::find(command.model).recipe;
  set_defaults(command.trainer, recipe, given.find("dataset") != nullptr);
  given.apply(command);
  set_milestones(command.trainer, recipe);
  for (const dp::Option<Command>& row : command_table().rows()) {
    const dp::OptionValue* const value = given.find(row.name);
    const bool refused_later = row.name == "graphs" && command.trainer.parallel.graphs == dp::Graphs::always;
    if (row.only && value && *value != dp::OptionValue{false} && !refused_later)
      command.given_for_one_kind.emplace_back(row.name, *row.only);
  }
}

}  // namespace

Command::Command() { trainer.parallel.timeout_seconds = 300; }

std::optional<Command> parse_command(int argc, const char* const* argv) {
  Command command;
  CLI::App app("Trains a network on every device of this host, data-parallel, from one process.", "dp_train");
  app.set_version_flag("--version", "dp_train " DP_VERSION);
  app.get_formatter()->column_width(38);
  app.footer(
      "Exit codes: 0 ok, 1 unexpected, 2 usage, 3 bad data or checkpoint, 4 device, 5 non-finite, 6 timeout,\n7 I/O, "
      "130 and 143 after an interrupt, once a checkpoint is written.");
  const command_line::Given<Command> given(app, command_table(), command);
  app.add_subcommand("estimate-memory", "print the memory that this run needs on each replica, and exit")
      ->fallthrough()
      ->callback([&] { command.estimate_memory = true; });
  app.add_subcommand("env", "print devices, drivers and versions, and exit")->callback([&] {
    command.environment = true;
  });
  if (!command_line::parse(app, argc, argv)) return std::nullopt;
  read(given, command);
  return command;
}

}  // namespace dp_train
