#include "command.h"

#include <dp/dataset.h>
#include <dp/error.h>
#include <dp/models.h>
#include <dp/run_options.h>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include "command_line/command_line.h"
#include "command_line/completion.h"
#include "fetch/sources.h"
#include "supervisor.h"

namespace dp_train {
namespace {

using command_line::Values;
using Row = dp::Option<Command>;

constexpr const char* kCommandLine = "command line";
const std::vector<std::string> kShells{"bash", "zsh", "fish", "man"};
// The options that these subcommands accept.
const std::vector<std::string_view> kSelftestOptions{"gpus", "num-gpus", "cpu", "replicas-per-device", "engine"};
const std::vector<std::string_view> kCheckOptions{"model",     "dataset",    "data-path", "input",        "classes",
                                                  "images",    "seed",       "workers",   "quiet",        "no-progress",
                                                  "val-split", "image-size", "crop-pct",  "interpolation"};
const std::vector<std::string_view> kFetchOptions{"data-path", "quiet", "no-progress"};
// dp_train's own options that a run records beside those of dp::run_options().
const std::vector<std::string_view> kRecordedOptions{"model",      "data-path", "classes-from", "input",
                                                     "classes",    "images",    "bad-images",   "val-split",
                                                     "image-size", "crop-pct",  "mean",         "std"};

// Options from one source: the record of a resumed run, a file, the command line.
struct Layer {
  Values values;
  std::string origin;  // empty: the record
};

// A value, and the layer that it comes from.
struct Chosen {
  dp::OptionValue value;
  const Layer* layer;
};
using Choices = std::map<std::string, Chosen>;

bool excludes(const Row& row, const std::string& name) {
  return std::find(row.excludes.begin(), row.excludes.end(), name) != row.excludes.end();
}

// The option that is set: some options set the value of another one.
std::string sets(const std::string& name) {
  for (const auto& [form, option] : {std::pair("sync-bn", "bn"),
                                     {"no-graphs", "graphs"},
                                     {"no-eval", "eval-every"},
                                     {"batch-size-per-gpu", "batch-size"},
                                     {"lr-scale", "lr"}})
    if (name == form) return option;
  return name;
}

// Removes the choices that `name` invalidates.
void drop_replaced(Choices& choices, const std::string& name, const dp::OptionValue& value) {
  const auto& table = command_table();
  const auto before = choices.find(name);
  const bool changes = before != choices.end() && before->second.value != value;
  for (const Row& row : table.rows())
    if (excludes(row, name) || excludes(*table.find(name), row.name) || (changes && row.required_option == name))
      choices.erase(row.name);
  choices.erase(sets(name));
}

// `layers`: in increasing precedence.
Choices merged(const std::vector<Layer>& layers) {
  Choices choices;
  for (const Layer& layer : layers) {
    for (const auto& [name, value] : layer.values) drop_replaced(choices, name, value);
    for (const auto& [name, value] : layer.values) choices.insert_or_assign(name, Chosen{value, &layer});
  }
  return choices;
}

// A file or a checkpoint may come from a stranger. It sets only options that a run records: no output, no command.
bool is_recorded(const std::string& option) {
  const std::string name = sets(option);
  const auto* const row = dp::run_options().find(name);
  return row != nullptr ? row->recorded : std::ranges::find(kRecordedOptions, name) != kRecordedOptions.end();
}

Values recorded_values(const std::vector<dp::RecordedOption>& recorded) {
  Values values;
  for (const dp::RecordedOption& option : recorded)
    if (const Row* const row = command_table().find(option.name); row != nullptr && is_recorded(option.name))
      values[option.name] = dp::parse_option(row->accepts, option.texts);
  return values;
}

Values configured_values(const Command& command) {
  Values values;
  std::vector<std::string> names;
  for (const Row& row : command_table().rows())
    if (is_recorded(row.name)) names.push_back(row.name);
  for (const dp::RecordedOption& option : command.configured) {
    const std::string where = "--config '" + *command.config + "': " + option.name;
    const Row* const row = command_table().find(option.name);
    if (option.name == "parameter-groups")
      throw dp::Error(
          dp::ErrorCode::usage,
          where + " were set by another program, which alone can repeat this run; dp_train has no such option");
    if (row == nullptr)
      throw dp::Error(dp::ErrorCode::usage, where + " is not an option" + command_line::suggestion(option.name, names));
    if (!is_recorded(option.name))
      throw dp::Error(dp::ErrorCode::usage,
                      where +
                          " does not belong in a file, which sets only the options that config.toml records; give --" +
                          option.name + " on the command line");
    try {
      values[option.name] = dp::parse_option(row->accepts, option.texts);
    } catch (const dp::Error& error) {
      throw dp::Error(dp::ErrorCode::usage, where + ": " + error.what());
    }
  }
  return values;
}

void choose_model_and_dataset(const Choices& choices, Command& command) {
  for (const char* const name : {"model", "dataset"})
    if (const auto chosen = choices.find(name); chosen != choices.end())
      command_table().set(*command_table().find(name), command, chosen->second.value);
  if (!choices.contains("model") && choices.contains("dataset"))
    command.model = dp::datasets::find(command.trainer.dataset_name).model;
  if (!choices.contains("dataset")) command.trainer.dataset_name = dp::models::find(command.model).recipe.dataset;
}

void set_defaults(const Choices& choices, dp::TrainerOptions& options, const dp::models::Recipe& recipe) {
  options.epochs = recipe.epochs > 0 ? recipe.epochs : dp::datasets::find(options.dataset_name).epochs;
  options.batch_size = recipe.batch_size;
  if (recipe.adamw)
    options.optimizer = dp::AdamW{.lr = recipe.lr, .weight_decay = recipe.weight_decay};
  else
    options.optimizer = dp::Sgd{
        .lr = recipe.lr, .momentum = recipe.momentum, .nesterov = recipe.nesterov, .weight_decay = recipe.weight_decay};
  options.schedule.kind = recipe.schedule;
  if (!choices.contains("no-augment")) options.augmentation = recipe.augmentation;
  const auto set = [&](const char* name, const dp::OptionValue& value) {
    if (!choices.contains(name)) dp::run_options().set(*dp::run_options().find(name), options, value);
  };
  set("freeze", recipe.freeze);
  set("lr-factor", recipe.lr_factors);
  set("no-decay-norm-bias", recipe.no_decay_norm_bias);
  if (!choices.contains("output-loss") && !choices.contains("own-loss"))
    options.parallel.label_smoothing = recipe.label_smoothing;
}

// Applies the recipe's warm-up, unless the user chose another schedule or a warm-up.
void set_warmup(dp::TrainerOptions& options, const dp::models::Recipe& recipe, const Choices& choices) {
  if (!choices.contains("lr-warmup-epochs") && options.schedule.kind == recipe.schedule)
    options.schedule.warmup_epochs = std::round(recipe.warmup * static_cast<double>(options.epochs) * 1e6) / 1e6;
}

// Milestones are parts of the number of epochs, unless they are given.
void set_milestones(dp::TrainerOptions& options, const dp::models::Recipe& recipe) {
  if (options.schedule.kind != dp::ScheduleKind::multistep || !options.schedule.milestones.empty()) return;
  const std::vector<double> halves{0.5, 0.75};
  for (const double part : recipe.milestones.empty() ? halves : recipe.milestones)
    options.schedule.milestones.push_back(part * static_cast<double>(options.epochs));
}

void set_given(const Row& row, const dp::OptionValue& value, const Layer& layer, Command& command) try {
  command_table().set(row, command, value);
} catch (const dp::Error& error) {
  if (layer.origin == kCommandLine) throw;
  throw dp::Error(error.code(), "--config '" + layer.origin + "': " + error.what());
}

// `all_apply`: an option of the command line or of a file that does not apply is refused.
void set_choices(const Choices& choices, bool all_apply, Command& command) {
  for (const Row& row : command_table().rows()) {
    const auto chosen = choices.find(row.name);
    if (chosen == choices.end()) continue;
    const auto& [value, layer] = chosen->second;
    // Recorded options that no longer apply after an override are ignored.
    if (all_apply && !layer->origin.empty())
      set_given(row, value, *layer, command);
    else
      row.assign(command, value);
    if (!layer->origin.empty()) command.trainer.given_by[sets(row.name)] = layer->origin;
    const bool refused_later = row.name == "graphs" && command.trainer.parallel.graphs == dp::Graphs::always;
    if (row.only && layer->origin == kCommandLine && value != dp::OptionValue{false} && !refused_later)
      command.given_for_one_kind.emplace_back(row.name, *row.only);
  }
}

// Records dp_train's own options that describe the data.
void record_data(Command& command) {
  if (command.data_path.find("://") != std::string::npos)  // may have a password, which a run would record
    throw dp::Error(dp::ErrorCode::usage, "--data-path '" + command.data_path +
                                              "' is an address; give a folder, such as one that `dp_train fetch` made");
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(command.data_path, error);
  const std::string full = error ? command.data_path : path.lexically_normal().string();
  command.trainer.record.emplace_back("data-path", full);
  // `position` is not recorded: after such a run its checkpoints have the names of the data.
  if (command.classes_from == "data") command.trainer.record.emplace_back("classes-from", command.classes_from);
  for (const char* const name :
       {"input", "classes", "images", "bad-images", "val-split", "image-size", "crop-pct", "mean", "std"})
    command.trainer.record.emplace_back(name, command_table().get(name, command));
}

Command completed(const Command& command, const std::vector<dp::RecordedOption>& recorded, bool all_apply) {
  const std::vector<Layer> layers{{recorded_values(recorded), ""},
                                  {configured_values(command), command.config.value_or("")},
                                  {command.given, kCommandLine}};
  // The rate in a file may be scaled already.
  if (command.given.contains("lr-scale") && !command.given.contains("lr") && layers[1].values.contains("lr"))
    throw dp::Error(dp::ErrorCode::usage, "--lr-scale: the lr in '" + *command.config +
                                              "' may be scaled already; give the unscaled rate with --lr");
  const Choices choices = merged(layers);
  Command result;
  result.estimate_memory = command.estimate_memory;
  result.selftest = command.selftest;
  result.check_data = command.check_data;
  result.given = command.given, result.configured = command.configured;
  choose_model_and_dataset(choices, result);
  const dp::models::Recipe& recipe = dp::models::find(result.model).recipe;
  set_defaults(choices, result.trainer, recipe);
  set_choices(choices, all_apply, result);
  set_milestones(result.trainer, recipe);
  set_warmup(result.trainer, recipe, choices);
  record_data(result);
  return result;
}

// Answers to options that other programs have and this one does not.
const std::map<std::string, std::string>& other_programs_options() {
  static const std::map<std::string, std::string> answers = [] {
    std::map<std::string, std::string> all{{"--dropout", "the network sets its dropout"},
                                           {"--drop-rate", "the network sets its dropout"},
                                           {"--no-amp", "without --amp, training is in float32"}};
    for (const auto& [ours, theirs] : std::vector<std::pair<std::string, std::vector<std::string>>>{
             {"--amp", {"--bf16", "--fp16", "--half", "--mixed-precision", "--precision"}},
             {"--auto-augment", {"--aa"}},
             {"--batch-size", {"--bs"}},
             {"--clip-grad-norm", {"--gradient-clip-val", "--max-grad-norm"}},
             {"--cpu", {"--no-cuda", "--use-cpu"}},
             {"--dry-run", {"--fast-dev-run"}},
             {"--eval-every", {"--check-val-every-n-epoch", "--eval-freq", "--eval-steps", "--val-freq"}},
             {"--experiment", {"--exp-name", "--name", "--run-name"}},
             {"--flip", {"--hflip"}},
             {"--gpus or --cpu", {"--accelerator", "--cuda", "--device", "--devices", "--use-cuda"}},
             {"--init", {"--pretrained", "--weights"}},
             {"--lr-gamma", {"--decay-rate", "--lr-decay"}},
             {"--lr-milestones or --lr-step-size", {"--decay-epochs", "--decay-milestones", "--lr-steps"}},
             {"--lr-warmup-epochs", {"--warmup", "--warmup-ratio", "--warmup-steps"}},
             {"--no-eval", {"--no-test", "--no-val", "--no-validate", "--skip-eval", "--train-only"}},
             {"--max-steps", {"--limit-train-batches", "--num-steps"}},
             {"--num-gpus", {"--nproc-per-node", "--world-size"}},
             {"--output-dir", {"--log-dir", "--save-dir"}},
             {"--patience", {"--early-stopping"}},
             {"--print-freq", {"--log-every-n-steps", "--logging-steps"}},
             {"--random-erase", {"--reprob"}},
             {"--resume", {"--checkpoint", "--ckpt-path", "--resume-from-checkpoint"}}})
      for (const std::string& name : theirs) all[name] = "did you mean " + ours + "?";
    return all;
  }();
  return answers;
}

// The words that options accept, for shells.
command_line::Choices choices() {
  command_line::Choices choices{{"shell", kShells}};
  for (const Row& row : command_table().rows()) choices[row.name] = row.accepts.names;
  for (const dp::models::Entry& entry : dp::models::registry()) choices["model"].push_back(entry.name);
  for (const dp::datasets::Entry& entry : dp::datasets::registry()) choices["dataset"].push_back(entry.name);
  for (const Source& source : sources()) choices["fetch dataset"].push_back(source.dataset);
  return choices;
}

bool same_but_for_capitals(const std::string& a, const std::string& b) {
  const auto lower = [](unsigned char c) { return std::tolower(c); };
  return std::ranges::equal(a, b, {}, lower, lower);
}

// If `given` equals a listed name except for upper and lower case, replaces it by that name.
void use_listed_name(std::string& given, const std::vector<std::string>& names) {
  const auto listed = std::ranges::find_if(names, [&](const auto& name) { return same_but_for_capitals(name, given); });
  if (listed != names.end()) given = *listed;
}

// Does the same for the name of a model or a data set, for example "ResNet18".
template <typename Entries>
void use_registered_name(Values& given, const char* option, const Entries& registry) {
  const auto value = given.find(option);
  if (value == given.end()) return;
  for (const auto& entry : registry)
    if (same_but_for_capitals(entry.name, dp::to_text(value->second))) value->second = entry.name;
}

// The parser accepts every option of a run before the name of a subcommand. This refuses those without effect.
void refuse_others(const Command& command, const std::string& subcommand,
                   const std::vector<std::string_view>& accepted) {
  for (const auto& [name, value] : command.given)
    if (std::ranges::find(accepted, name) == accepted.end())
      throw dp::Error(dp::ErrorCode::usage, "--" + name + " has no effect on " + subcommand + "; leave it out");
}

}  // namespace

namespace {
Program& own_program() {
  static Program program{"dp_train", "dp_train " DP_VERSION};
  return program;
}
}  // namespace

const Program& program() { return own_program(); }

void set_program(const std::string& name) {
  if (name.empty() || name == program().name) return;
  own_program() = {name, name + ", dp " DP_VERSION};
}

Command::Command() { trainer.parallel.timeout_seconds = 300; }

Command complete(const Command& command, const std::vector<dp::RecordedOption>& recorded) {
  return completed(command, recorded, /*all_apply=*/true);
}

std::optional<Command> parse_command(int argc, const char* const* argv) {
  Command command;
  CLI::App app("Trains a network on every device of this host, data-parallel, from one process.", program().name);
  app.set_version_flag("--version", program().version);
  app.get_formatter()->column_width(38);
  app.footer(
      "Exit codes: 0 ok, 1 unexpected, 2 usage, 3 bad data or checkpoint, 4 device, 5 non-finite, 6 timeout,\n7 I/O, "
      "128 + n after signal n (INT, TERM, HUP, USR1, USR2), once a checkpoint is written.");
  command_line::add_options(app, command_table(), command, command.given);
  app.add_subcommand("estimate-memory", "print the memory that this run needs on each replica and in all, and exit")
      ->fallthrough()
      ->callback([&] { command.estimate_memory = true; });
  app.add_subcommand("env", "print devices, drivers and versions, and exit")->callback([&] {
    command.environment = true;
  });
  CLI::App* const selftest =
      app.add_subcommand("selftest", "train a small network on the devices, check what they compute, and exit");
  selftest->callback([&] { command.selftest = true; });
  command_line::add_options(*selftest, command_table(), command, command.given, kSelftestOptions);
  CLI::App* const check = app.add_subcommand("check-data",
                                             "read every image of the data set on all cores, or -j threads; list the "
                                             "bad ones, print mean and deviation of each "
                                             "channel, and exit: 3 if there are bad ones");
  check->callback([&] { command.check_data = true; });
  command_line::add_options(*check, command_table(), command, command.given, kCheckOptions);
  CLI::App* const report =
      app.add_subcommand("report", "write an HTML page about one run, or several side by side, and exit");
  report->add_option("run", command.report_runs, "the folder of a run, such as runs/digits; several are compared")
      ->required();
  report->add_option("-o,--output", command.report_file, "the page [<run>/report.html; report.html for several]")
      ->check(command_line::accepts(dp::accepts::text("a file")));
  app.add_subcommand("status", "print how a run is doing, while it runs or afterwards, and exit")
      ->add_option("run", command.status_run, "the folder of a run, such as runs/digits")
      ->required();
  CLI::App* const convert =
      app.add_subcommand("convert", "write weights of PyTorch (.pth), or those of a run, as safetensors, and exit");
  convert
      ->add_option("weights", command.convert,
                   "a file of torch.save or a safetensors file; a checkpoint; the folder of a run")
      ->required();
  convert->add_option("-o,--output", command.convert_output, "the safetensors file to write")
      ->required()
      ->check(command_line::accepts(dp::accepts::text("a file")));
  convert
      ->add_option("--entry", command.convert_entry,
                   "the entry of a PyTorch checkpoint to take, such as model_ema [its weights or their average]")
      ->check(command_line::accepts(dp::accepts::text("an entry")));
  CLI::App* const exporting = app.add_subcommand("export", "write a trained network as an ONNX file, and exit");
  exporting
      ->add_option("weights", command.exported.from, "the folder of a run or of a checkpoint, or a file of weights")
      ->required()
      ->check(command_line::accepts(dp::accepts::text("a run")));
  exporting->add_option("-o,--output", command.exported.file, "the ONNX file to write")
      ->required()
      ->check(command_line::accepts(dp::accepts::text("a file")));
  exporting->add_flag("--fold-bn", command.exported.fold_bn,
                      "fold batch normalisations into the convolutions before them");
  exporting->add_flag("--dynamic-batch", command.exported.dynamic_batch,
                      "accept any number of images; otherwise one at a time");
  std::vector<std::string> remote;
  for (const Source& source : sources()) remote.push_back(source.dataset);
  CLI::App* const fetch =
      app.add_subcommand("fetch", "download a data set into --data-path, check it, unpack it, and exit");
  fetch->add_option("dataset", command.fetch, "a data set: mnist, fashion_mnist, cifar10 or cifar100")
      ->required()
      ->check(command_line::accepts(dp::accepts::one_of(remote)));
  fetch->add_option("--mirror", command.mirror, "base address to download from [the official ones]")
      ->check(command_line::accepts(dp::accepts::text("an address")));
  command_line::add_options(*fetch, command_table(), command, command.given, kFetchOptions);
  const std::vector<std::string_view>& predict_options = add_predict(app, command);
  std::string shell;
  app.add_subcommand("completion", "print a script that completes the options in a shell, or the manual page, and exit")
      ->add_option("shell", shell, "a shell: bash, zsh, fish, or man for the manual page")
      ->required()
      ->check(command_line::accepts(dp::accepts::one_of(kShells)));
  if (!command_line::parse(app, argc, argv, other_programs_options())) return std::nullopt;
  use_listed_name(shell, kShells);
  use_listed_name(command.fetch, remote);
  use_registered_name(command.given, "model", dp::models::registry());
  use_registered_name(command.given, "dataset", dp::datasets::registry());
  if (command.selftest) refuse_others(command, "selftest", kSelftestOptions);
  if (command.check_data) refuse_others(command, "check-data", kCheckOptions);
  if (!command.fetch.empty()) refuse_others(command, "fetch", kFetchOptions);
  if (!command.convert.empty()) refuse_others(command, "convert", {});
  if (!command.predict.checkpoint.empty()) {
    refuse_others(command, "predict", predict_options);
    command_line::set_options(command_table(), command.given, command);
    return command;
  }
  if (!shell.empty()) {
    const std::string text =
        shell == "man" ? command_line::manual_page(app, DP_VERSION) : command_line::completion(app, choices(), shell);
    std::fwrite(text.data(), 1, text.size(), stdout);
    return std::nullopt;
  }
  const auto given = [&](const std::string& name) {
    if (command.given.contains(name)) command_table().set(*command_table().find(name), command, command.given.at(name));
  };
  if (!command.fetch.empty()) {
    for (const std::string_view name : kFetchOptions) given(std::string(name));
    return command;
  }
  if (!command.convert.empty()) return command;
  given("list-models"), given("list-datasets");
  if (command.list_models || command.list_datasets || command.environment || !command.report_runs.empty() ||
      !command.status_run.empty() || !command.exported.from.empty())
    return command;
  obey_supervisor(command.given);
  given("config");
  if (command.config) command.configured = command_line::read_config_file(*command.config);
  // Which options apply to a resumed run is known once its record is read.
  return completed(command, {}, /*all_apply=*/!command.given.contains("resume"));
}

// The options of dp_train that are not options of a run everywhere.

namespace {

using dp::OptionValue;
namespace accepts = dp::accepts;
using Table = dp::OptionTable<Command>;

void add_what(Table& table) {
  table.group("Model and data");
  table.add("model,--arch,-a", accepts::text(), &Command::model,
            "network; --list-models lists them; or an ONNX file, net.onnx, with its weights");
  table.add("list-models", accepts::flag(), &Command::list_models, "print the networks and exit");
  table.add("list-datasets", accepts::flag(), &Command::list_datasets, "print the data sets and exit");
  table.add("data-path,--data-dir", accepts::text("a folder"), &Command::data_path, "folder of the data set's files");
  table.add("classes-from", accepts::one_of({"checkpoint", "data", "position"}), &Command::classes_from,
            "with --resume or --init: checkpoint (the class names of the data must be the checkpoint's), data (match "
            "the data's classes by name), position (match them by number)");
  table.add("input", accepts::text(), &Command::input, "synthetic: image shape C,H,W").shown("1,28,28");
  table.add("classes,--num-classes", accepts::whole(1, 1 << 20), &Command::classes, "synthetic: number of classes")
      .shown("10");
  table
      .add("images", accepts::whole(1, 1 << 26), &Command::images,
           "synthetic: number of training images; the test set has a sixth of it")
      .shown("60000");
  table
      .add("image-size,--img-size", accepts::whole(1, 4096), &Command::image_size,
           "imagefolder, imagelist, imagetargets, imageshards: rows and columns of the images that the network gets")
      .shown("224");
  table
      .add(
          "crop-pct", accepts::number(0.05, 1), &Command::crop_pct,
          "imagefolder, imagelist, imagetargets, imageshards: for evaluations, resize the shorter side to image-size / "
          "crop-pct before the central crop")
      .shown("0.875");
  table.add("val-split", accepts::number(1e-6, 0.999999), &Command::val_split,
            "test on this part of the training images of each class, chosen by --seed, instead of the test set");
  table
      .add("mean", accepts::list(accepts::number(-1e6, 1e6)), &Command::mean,
           "mean of the pixels of each channel, from 0 to 1, which is subtracted")
      .shown("by data set");
  table
      .add("std", accepts::list(accepts::positive(1e6)), &Command::std,
           "standard deviation of the pixels of each channel, by which they are divided")
      .shown("by data set");
}

void add_bad_images(Table& table) {
  table
      .add("bad-images", accepts::one_of({"fail", "skip"}), &Command::bad_images,
           "imagefolder, imagelist: fail, or skip: replace an image that cannot be read by the next of its class, and "
           "list it")
      .shown("fail");
}

void add_devices(Table& table) {
  table.group("Devices");
  table.add("gpus,--gpu", accepts::text(), &Command::gpus, "ids (0,1), ranges (0-3), or all")
      .shown("all visible")
      .without({"num-gpus", "cpu"});
  table.add("num-gpus", accepts::whole(1, 1024), &Command::num_gpus, "the first N GPUs").without({"cpu"});
  table.add("cpu", accepts::whole(1, 256), &Command::cpu, "train on N CPU replicas").shown("2 if no GPU is usable");
  table.add("replicas-per-device", accepts::whole(1, 64), &Command::replicas_per_device, "replicas on each device");
}

void add_processes(Table& table) {
  table.group("Processes");
  table.add("engine", accepts::one_of({"dp", "ddp"}), &Command::engine,
            "dp: one process drives all devices; ddp: one process per device, started by this one, torchrun or "
            "mpirun");
  table.add("nnodes", accepts::whole(1, 1024), &Command::nnodes,
            "ddp: number of hosts; start each with the same command and its own --node-rank");
  table.add("node-rank", accepts::whole(0, 1023), &Command::node_rank,
            "ddp: number of this host; the others connect to host 0");
  table
      .add("master-addr", accepts::text("a host"), &Command::master_addr,
           "ddp: address of host 0, the only one on which it listens")
      .shown("127.0.0.1");
  table.add("master-port", accepts::whole(1, 65535), &Command::master_port, "ddp: port of host 0")
      .unset_at_zero()
      .shown("a free one; 29500 with several hosts");
  table.add("local-rank", accepts::whole(0, 1023), &Command::local_rank,
            "accepted for torch.distributed.launch, without effect: the rank is read from the environment");
}

// Other forms of options of a run.
void add_other_forms(Table& table) {
  table.group("Training");
  table
      .add("batch-size-per-gpu", accepts::whole(1, 1 << 20), &Command::batch_size_per_gpu,
           "batch size per replica, instead of -b")
      .without({"batch-size"});
  table.add("lr-scale", accepts::one_of({"none", "linear"}), &Command::lr_scale,
            "none, or linear: multiply the rate by global batch / the batch of the model's recipe");
  table.group("Data parallelism");
  table
      .add(
          "sync-bn", accepts::flag(), "same as --bn sync", [](const Command&) { return OptionValue{}; },
          [](Command& command, const OptionValue& on) {
            if (std::get<bool>(on)) command.trainer.parallel.batch_norm = dp::BatchNormMode::sync;
            return true;
          })
      .without({"bn"});
  table
      .add(
          "no-graphs", accepts::flag(), "same as --graphs never", [](const Command&) { return OptionValue{}; },
          [](Command& command, const OptionValue& on) {
            if (std::get<bool>(on)) command.trainer.parallel.graphs = dp::Graphs::never;
            return true;
          })
      .only_on(dp::DeviceKind::cuda)
      .without({"graphs"});
}

void add_run(Table& table) {
  table.group("The run");
  table
      .add(
          "no-eval", accepts::flag(), "same as --eval-every 0", [](const Command&) { return OptionValue{}; },
          [](Command& command, const OptionValue& on) {
            if (std::get<bool>(on)) command.trainer.eval_every = 0;
            return true;
          })
      .without({"eval-every", "evaluate"});
  table.add("output-dir", accepts::text("a folder"), &Command::output_dir, "folder of the run")
      .shown("runs/<time>_<model>");
  table.add("experiment", accepts::text(), &Command::experiment,
            "name of the run: <output-dir>/<experiment>, by default in runs/");
  table
      .add("max-restarts", accepts::whole(0, 1000), &Command::max_restarts,
           "restart the run from its last checkpoint if it crashes, stalls or loses a device; give up after this many "
           "restarts without a new checkpoint")
      .without({"evaluate", "dry-run", "print-plan", "save-config"});
  table
      .add(
          "elastic", accepts::flag(),
          [](auto& command) { return command.max_restarts > 0 ? &command.elastic : nullptr; },
          "at a restart, leave out GPUs that no longer work")
      .needs("--max-restarts")
      .only_on(dp::DeviceKind::cuda)
      .without({"batch-size-per-gpu"});
  table
      .add("on-end", accepts::text("a command"), &Command::on_end,
           "run this shell command when the run has ended; DP_STATUS, DP_EXIT_CODE and other variables describe it")
      .without({"evaluate", "dry-run", "print-plan", "save-config"});
  table
      .add("webhook", accepts::text("an address"), &Command::webhook,
           "send a JSON document about the run to this address (http or https) when it has ended")
      .without({"evaluate", "dry-run", "print-plan", "save-config"});
  table.add("evaluate,-e,--test-only", accepts::flag(), &Command::evaluate,
            "only evaluate the weights of --init or --resume");
  table.add("config,-c", accepts::text("a file"), &Command::config,
            "read options from this TOML file, such as config.toml of a run; the command line comes first");
  table.add("save-config", accepts::text("a file"), &Command::save_config,
            "write the options of the run to this file, for --config, and exit");
  table.add("print-plan", accepts::flag(), &Command::print_plan, "print the ops and buffers of a step, and exit");
  table.add("quiet", accepts::flag(), &Command::quiet, "print only the summary");
  table.add("no-progress", accepts::flag(), &Command::no_progress, "print plain lines, even on a terminal");
}

Table make() {
  Table table;
  add_what(table);
  add_bad_images(table);
  add_devices(table);
  add_processes(table);
  table.include(dp::run_options(), &Command::trainer);
  add_other_forms(table);
  add_run(table);
  return table;
}

}  // namespace

const Table& command_table() {
  static const Table table = make();
  return table;
}

}  // namespace dp_train
