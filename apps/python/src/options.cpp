#include "options.h"

#include <dp/loader.h>
#include <algorithm>
#include <map>
#include <set>

#include "compute_thread.h"

namespace dp_python {
namespace {

using Row = dp::Option<dp::TrainerOptions>;
using Accepts = dp::Accepts;

std::string python_name(const std::string& option) {
  std::string name = option;
  std::ranges::replace(name, '-', '_');
  return name;
}

// An option that turns something off has an argument that turns it on: --no-augment is augment=False.
bool turns_off(const Row& row) { return row.accepts.kind == Accepts::Kind::flag && row.name.starts_with("no-"); }
std::string argument_of(const Row& row) { return python_name(turns_off(row) ? row.name.substr(3) : row.name); }

bool belongs(const Row& row, OptionsOf kind) {
  if (row.name.starts_with("own-")) return false;  // of the registries of a program; own_loss is a function here
  if (kind == OptionsOf::trainer) return true;
  return row.name == "split" || dp::parallel_option_table().find(row.name) != nullptr;
}

std::string text_of(nb::handle value) {
  if (!nb::hasattr(value, "__fspath__")) return nb::str(value).c_str();
  const nb::object path = value.attr("__fspath__")();
  return nb::str(path).c_str();
}

std::string joined(const nb::handle& values, const char* between) {
  std::string text;
  for (const nb::handle value : values) text += (text.empty() ? "" : between) + text_of(value);
  return text;
}

bool is_list(nb::handle value) { return nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value); }

// The texts that a command line would have for the value; parse_option() checks them.
std::vector<std::string> texts_of(const Row& row, nb::handle value) {
  if (row.accepts.kind == Accepts::Kind::flag) return {nb::cast<bool>(value) != turns_off(row) ? "true" : "false"};
  if (!is_list(value)) return {text_of(value)};
  if (row.accepts.count != Accepts::Count::one) {
    std::vector<std::string> texts;
    for (const nb::handle each : value) texts.push_back(text_of(each));
    return texts;
  }
  return {joined(value, row.name == "split" ? ":" : ",")};
}

dp::OptionValue value_of(const Row& row, const std::vector<std::string>& texts) {
  if (row.accepts.kind == Accepts::Kind::flag) return texts.front() == "true";
  return dp::parse_option(row.accepts, texts);
}

void assign(const Row& row, dp::TrainerOptions& options, const std::vector<std::string>& texts) {
  const std::string argument = argument_of(row);
  try {
    dp::run_options().set(row, options, value_of(row, texts));
  } catch (const dp::Error& error) {
    std::string message = error.what();
    const bool named = message.starts_with("--");
    for (const Row& each : dp::run_options().rows()) {  // the messages name the options of a command line
      const std::string option = "--" + each.name;
      for (std::size_t at = 0; (at = message.find(option, at)) != std::string::npos; ++at)
        if (const char next = message[at + option.size()];
            next != '-' && std::isalnum(static_cast<unsigned char>(next)) == 0)
          message.replace(at, option.size(), argument_of(each));
    }
    throw dp::Error(error.code(), named ? message : argument + ": " + message);
  }
}

// The texts of the options of a resumed run, by row.
std::map<std::string, std::vector<std::string>> recorded(const std::string& resume, const std::string& output_dir) {
  std::map<std::string, std::vector<std::string>> texts;
  if (resume.empty()) return texts;
  const nb::gil_scoped_release release;
  const std::string config = dp::resumed_config(resume, output_dir);
  if (config.empty()) return texts;
  for (dp::RecordedOption& option : dp::recorded_options(config)) texts[option.name] = std::move(option.texts);
  return texts;
}

// Copied and destroyed on threads without the interpreter lock.
using Shared = std::shared_ptr<nb::object>;

Shared function_of(nb::handle value) {
  if (PyCallable_Check(value.ptr()) == 0) refuse("own_loss and metrics must be functions");
  return {new nb::object(nb::borrow(value)), [](nb::object* function) {
            if (Py_IsInitialized() == 0) return;
            const nb::gil_scoped_acquire acquire;
            delete function;
          }};
}

dp::Loss loss_of(const nb::object& result, const dp::Tensor& outputs) {
  dp::Loss loss;
  loss.value = nb::cast<double>(result[0]);
  loss.grad = tensor_of(nb::cast<Array>(result[1]));
  if (loss.grad.dtype() != outputs.dtype()) loss.grad = loss.grad.to(outputs.dtype());
  return loss;
}

dp::OwnLoss own_loss(const Shared& function, const std::shared_ptr<ComputeThread>& thread) {
  return {.name = "own", .note = "", .function = [function, thread](const dp::Tensor& outputs, const dp::Batch& batch) {
            dp::Loss loss;
            thread->call_back([&] {
              const dp::Tensor& wanted = batch.targets.empty() ? batch.labels : batch.targets;
              loss = loss_of((*function)(array_of(outputs.clone()), array_of(wanted.clone())), outputs);
            });
            return loss;
          }};
}

dp::OwnMetric own_metric(const std::string& name, const Shared& function,
                         const std::shared_ptr<ComputeThread>& thread) {
  return {.name = name, .function = [function, thread](const dp::EvaluatedLogits& evaluated) {
            double value = 0;
            thread->call_back([&] {
              dp::Tensor wanted = evaluated.targets;
              if (wanted.empty()) {
                wanted = dp::Tensor({static_cast<std::int64_t>(evaluated.labels.size())}, dp::DType::i32);
                std::ranges::copy(evaluated.labels, wanted.data<std::int32_t>());
              }
              value = nb::cast<double>((*function)(array_of(evaluated.logits), array_of(wanted)));
            });
            return value;
          }};
}

void assign_objects(OptionsOf kind, dp::TrainerOptions& options, nb::dict& left,
                    const std::shared_ptr<ComputeThread>& thread) {
  const auto take = [&](const char* name) {
    nb::object value = nb::none();
    if (left.contains(name)) value = left[name], nb::del(left[name]);
    return value;
  };
  if (const nb::object devices = take("devices"); !devices.is_none())
    for (const nb::handle device : devices) {
      dp::Device value;
      if (!nb::try_cast(nb::borrow(device), value))
        refuse("device '" + text_of(device) + "' does not exist; give 'cpu', 'cuda:0' or the number of a GPU");
      options.parallel.devices.push_back(value);
    }
  if (const nb::object groups = take("parameter_groups"); !groups.is_none())
    for (const nb::handle group : groups)
      options.parallel.parameter_groups.push_back(nb::cast<dp::ParameterGroup>(group));
  if (const nb::object loss = take("own_loss"); !loss.is_none())
    options.parallel.own_loss = own_loss(function_of(loss), thread);
  if (kind == OptionsOf::data_parallel) return;
  if (const nb::object optimizer = take("optimizer"); !optimizer.is_none())
    options.optimizer = nb::cast<dp::Optimizer>(optimizer);
  if (const nb::object schedule = take("schedule"); !schedule.is_none())
    options.schedule = nb::cast<dp::Schedule>(schedule);
  if (const nb::object folder = take("output_dir"); !folder.is_none()) options.output_dir = text_of(folder);
  if (const nb::object by_position = take("classes_by_position"); !by_position.is_none())
    options.classes_by_position = nb::cast<bool>(by_position);
  if (const nb::object metrics = take("metrics"); !metrics.is_none())
    for (const auto& [name, function] : nb::cast<nb::dict>(metrics))
      options.metrics.push_back(own_metric(text_of(name), function_of(function), thread));
  if (const nb::object weights = take("first_weights"); !weights.is_none())
    options.first_weights = [tensors = tensors_of(nb::cast<nb::dict>(weights))] { return tensors; };
}

[[noreturn]] void refuse_unknown(OptionsOf kind, const std::string& name) {
  std::string names = "devices, parameter_groups";
  for (const Row& row : dp::run_options().rows())
    if (belongs(row, kind)) names += ", " + argument_of(row);
  refuse("argument '" + name + "' does not exist; there are " + names);
}

}  // namespace

dp::TrainerOptions options_from(OptionsOf kind, const nb::dict& arguments,
                                const std::shared_ptr<ComputeThread>& thread) {
  dp::TrainerOptions options;
  nb::dict left;
  for (const auto& [name, value] : arguments)
    if (!value.is_none()) left[name] = value;
  const auto text = [&](const char* name) { return left.contains(name) ? text_of(left[name]) : std::string(); };
  auto texts = recorded(text("resume"), text("output_dir"));
  std::set<std::string> known;
  // optimizer and schedule are names here, or objects, which assign_objects() takes.
  const auto is_object = [&](const std::string& name) {
    return (name == "optimizer" || name == "schedule") && !nb::isinstance<nb::str>(left[name.c_str()]);
  };
  for (const Row& row : dp::run_options().rows()) {
    const std::string argument = argument_of(row);
    if (!belongs(row, kind) || !left.contains(argument.c_str()) || is_object(argument)) continue;
    texts[row.name] = texts_of(row, left[argument.c_str()]);
    if (!text("resume").empty()) options.given_by[row.name] = "argument";
    known.insert(argument);
  }
  for (const Row& row : dp::run_options().rows()) {
    const auto given = texts.find(row.name);
    if (given == texts.end()) continue;
    // A recorded option of something that the arguments change, such as the momentum of another optimizer, is ignored.
    const bool was_recorded = !known.contains(argument_of(row));
    if (was_recorded && known.contains(python_name(row.required_option))) continue;
    assign(row, options, given->second);
  }
  for (const std::string& name : known) nb::del(left[name.c_str()]);
  assign_objects(kind, options, left, thread);
  for (const auto& [name, value] : left) refuse_unknown(kind, nb::str(name).c_str());
  if (kind == OptionsOf::data_parallel && options.measure_split)
    refuse("split: 'auto' belongs to a Trainer; dp.measure_split() returns the weights");
  return options;
}

dp::DataParallelOptions parallel_options(const nb::object& devices, const nb::kwargs& arguments,
                                         const std::shared_ptr<ComputeThread>& thread) {
  nb::dict all;
  for (const auto& [name, value] : arguments) all[name] = value;
  if (!devices.is_none()) all["devices"] = devices;
  return options_from(OptionsOf::data_parallel, all, thread).parallel;
}

std::string describe_options(OptionsOf kind) {
  std::string text;
  for (const Row& row : dp::run_options().rows()) {
    if (!belongs(row, kind)) continue;
    std::string help = row.help;
    if (turns_off(row)) help = "False: " + help;
    text += "    " + argument_of(row) + ": " + help + "\n";
  }
  return text;
}

}  // namespace dp_python
