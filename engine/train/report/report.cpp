// The page about runs, from the files of their folders.
#include "dp/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include "dp/error.h"
#include "dp/stop_signals.h"
#include "dp/trainer.h"
#include "engine/base/files.h"
#include "engine/base/text.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/train/record/run_config.h"
#include "engine/train/record/run_folder.h"
#include "engine/train/report/page.h"

namespace dp {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr std::uintmax_t kLongestRecord = 16 << 20;  // bytes; larger files are left out
constexpr std::size_t kMostPoints = 300;             // of a curve
constexpr int kMostRanks = 64;                       // further ranks and their crashes are left out

// Files of a run may be damaged, so no field is taken for granted. Null if there is no such field.
const OrderedJson& field(const OrderedJson& json, const char* name) {
  static const OrderedJson none;
  const auto at = json.is_object() ? json.find(name) : json.end();
  return at == json.end() ? none : *at;
}

double number(const OrderedJson& json, const char* name) {
  const OrderedJson& value = field(json, name);
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

std::string word(const OrderedJson& json, const char* name) {
  const OrderedJson& value = field(json, name);
  return value.is_string() ? value.get<std::string>() : "";
}

std::string text_of(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error) || fs::file_size(file, error) > kLongestRecord) return "";
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

// Null unless the file has a JSON object.
OrderedJson record_of(const fs::path& file) {
  OrderedJson json = parse_record<OrderedJson>(text_of(file));
  return json.is_object() ? json : OrderedJson();
}

std::string latest_config(const std::string& folder) {
  std::string latest = folder + "/config.toml";
  std::error_code error;
  for (int number = 2;; ++number) {
    const std::string next = fmt::format("{}/config.{}.toml", folder, number);
    if (!fs::is_regular_file(next, error)) return latest;
    latest = next;
  }
}

using Lines = std::vector<OrderedJson>;

struct Run {
  std::string name;  // of the folder
  OrderedJson summary, env, predictions;
  std::string config;
  Lines training, resumptions;
  Lines tests, average_tests;  // evaluations of the weights, and of their moving average
  Lines crashes;               // of its ranks, the last one of each
};

// The last evaluation that counts: of the moving average, if there is one.
double last_test(const Run& run, const char* name) {
  const Lines& lines = run.average_tests.empty() ? run.tests : run.average_tests;
  double last = std::numeric_limits<double>::quiet_NaN();
  for (const OrderedJson& line : lines)
    if (std::isfinite(number(line, name))) last = number(line, name);
  return last;
}

std::vector<double> values_of(std::span<const OrderedJson> lines, const char* name) {
  std::vector<double> values;
  for (const OrderedJson& line : lines)
    if (const double value = number(line, name); std::isfinite(value)) values.push_back(value);
  return values;
}

// The record of the last start; null if there is none.
const OrderedJson& last_part(const Run& run) {
  const OrderedJson& parts = field(run.env, "parts");
  return parts.is_array() && !parts.empty() ? parts.back() : field(parts, "");
}

double test_images(const Run& run) {
  const double images = number(field(last_part(run), "data"), "test_images");
  return images > 0 ? images : 0;
}

// Half of the interval that holds the true accuracy with 95 %, in percent; 0: unknown.
double accuracy_margin(const Run& run) {
  const double share = last_test(run, "top1") / 100, images = test_images(run);
  return images > 0 && std::isfinite(share) ? 196 * std::sqrt(std::max(share * (1 - share), 0.0) / images) : 0;
}

std::string shown(double value, const char* format) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : "-";
}

// The main results as text. An active or killed run has no summary: then the last training line is shown.
OrderedJson results_of(const Run& run) {
  const auto of_summary = [&](const char* name, const char* format, const char* of_line = nullptr) {
    if (!run.summary.is_null() || of_line == nullptr) return shown(number(run.summary, name), format);
    const std::vector<double> values = values_of(run.training, of_line);
    return values.empty() ? std::string("-") : shown(values.back(), format);
  };
  const double margin = accuracy_margin(run);
  const std::string end = word(run.summary, "end");
  OrderedJson results;
  for (const auto& [field, name] :
       {std::pair("mae", "MAE"), {"rmse", "RMSE"}, {"r2", "R2"}, {"f1", "F1"}, {"map", "mAP"}})
    if (const double value = last_test(run, field); std::isfinite(value)) results[name] = shown(value, "{:.4g}");
  if (results.empty())
    results = {
        {"Acc@1 (%)", shown(last_test(run, "top1"), "{:.2f}") + (margin > 0 ? fmt::format(" ±{:.2f}", margin) : "")},
        {"Acc@5 (%)", shown(last_test(run, "top5"), "{:.2f}")}};
  results.update(OrderedJson{{"test loss", shown(last_test(run, "loss"), "{:.4g}")},
                             {"train loss", of_summary("train_loss", "{:.4g}", "loss")},
                             {"epochs", of_summary("epochs", "{:.0f}")},
                             {"steps", of_summary("steps", "{:.0f}", "step")},
                             {"images/s", of_summary("images_per_second", "{:.0f}")},
                             {"training time (s)", of_summary("seconds_train", "{:.1f}", "seconds_train")},
                             {"end", end.empty() ? "-" : end}});
  return results;
}

// The frames of a thread, the innermost first.
std::vector<std::string> frames_of(const OrderedJson& stack) {
  std::vector<std::string> frames;
  if (stack.is_array())
    for (const OrderedJson& frame : stack)
      if (frame.is_string()) frames.push_back(printable(frame.get<std::string>()));
  return frames;
}

std::string seconds_text(const OrderedJson& json) {
  const double seconds = number(json, "time");
  return seconds > 0 && seconds < 1e11 ? local_time(static_cast<std::time_t>(seconds)) : "an unknown time";
}

// "crashed at 2026-11-30 12:00:00: SIGSEGV (invalid memory reference)"; of a stall "stalled at ...".
std::string headline_of(const OrderedJson& crash) {
  const char* const verb = number(crash, "thread") > 0 ? "crashed" : "stalled";
  return fmt::format("{} at {}: {}", verb, seconds_text(crash), printable(word(crash, "what")));
}

// A crash for people: the stacks, and the last operations of each replica.
std::string text_of_crash(const OrderedJson& crash) {
  std::string text = "process " + shown(number(crash, "process"), "{:.0f}") + " " + headline_of(crash) + "\n";
  const auto add_stack = [&](const std::string& title, const OrderedJson& stack) {
    text += "\n" + title + "\n";
    for (const std::string& frame : frames_of(stack)) text += "  " + frame + "\n";
  };
  if (const OrderedJson& threads = field(crash, "threads"); threads.is_array())
    for (const OrderedJson& thread : threads) {
      const bool crashed = number(thread, "thread") == number(crash, "thread");
      add_stack("thread " + printable(word(thread, "name")) + (crashed ? ", which crashed" : ""),
                field(thread, "stack"));
    }
  else
    add_stack("thread that crashed, addresses only", field(crash, "stack"));
  const OrderedJson& replicas = field(crash, "replicas");
  if (!replicas.is_array()) return text;
  for (const OrderedJson& replica : replicas) {
    text += fmt::format("\nreplica {}, {}: last operations, newest first, ms before the record\n",
                        shown(number(replica, "replica"), "{:.0f}"), printable(word(replica, "phase")));
    if (const OrderedJson& recent = field(replica, "recent"); recent.is_array())
      for (const OrderedJson& one : recent) {
        const double bucket = number(one, "bucket");
        text += fmt::format("  {:>10}  step {}  {:<9}  {}{}  {} bytes\n", shown(number(one, "us_ago") / 1e3, "{:.3f}"),
                            shown(number(one, "step"), "{:.0f}"), printable(word(one, "phase")),
                            printable(word(one, "name")), bucket >= 0 ? fmt::format(" of bucket {:.0f}", bucket) : "",
                            shown(number(one, "bytes"), "{:.0f}"));
      }
  }
  return text;
}

// What calls for attention while a run trains.
std::vector<std::string> troubles_of(const Run& run) {
  std::vector<std::string> found;
  const auto sum_of = [&](const char* name) {
    double sum = 0;
    for (const double value : values_of(run.training, name)) sum += value;
    return sum;
  };
  const auto waits = static_cast<double>(values_of(run.training, "loading_share").size());
  if (const double sum = sum_of("loading_share"); waits > 0 && sum / waits > 0.1)
    found.push_back(
        fmt::format("training spent {:.0f} % of the time waiting for data; raise --workers", 100 * sum / waits));
  if (const double skipped = sum_of("skipped"); skipped > 0)
    found.push_back(fmt::format("{:.0f} steps were skipped: a loss or gradient was not finite", skipped));
  if (const OrderedJson& failures = field(run.env, "failures"); failures.is_array() && !failures.empty())
    found.push_back(fmt::format("the process failed {}, last at {}: {}",
                                failures.size() == 1 ? "once" : fmt::format("{} times", failures.size()),
                                word(failures.back(), "time"), printable(word(failures.back(), "end"))));
  for (const OrderedJson& crash : run.crashes) found.push_back(headline_of(crash));
  return found;
}

// Why figures of this run should be read with care.
std::vector<std::string> warnings_of(const Run& run) {
  std::vector<std::string> found;
  const OrderedJson& interrupted = field(run.summary, "interrupted");
  if (run.summary.is_null())
    found.push_back("there is no summary yet: the run is active, or has failed");
  else if (const std::string end = word(run.summary, "end"); end.starts_with("error: "))
    found.push_back("the run was ended by an " + end);
  else if (interrupted.is_boolean() && interrupted.get<bool>())
    found.push_back("the run was interrupted before its end");
  if (const double margin = accuracy_margin(run); margin > 0.5)
    found.push_back(
        fmt::format("the test set has {:.0f} images: the accuracy is known to ±{:.1f} percentage points only",
                    test_images(run), margin));
  std::vector<double> rates = values_of(run.training, "images_per_second");
  if (rates.size() < 10) {
    found.push_back(fmt::format("only {} measurements of throughput", rates.size()));
  } else {
    std::sort(rates.begin(), rates.end());
    const double middle = rates[rates.size() / 2], spread = rates[rates.size() * 3 / 4] - rates[rates.size() / 4];
    if (spread > 0.2 * middle)
      found.push_back(fmt::format("throughput varied: the middle half of its measurements spans {:.0f} % of the median",
                                  100 * spread / middle));
  }
  for (std::string& trouble : troubles_of(run)) found.push_back(std::move(trouble));
  return found;
}

// Time spent waiting for data, in seconds.
double loading_seconds(const Lines& training) {
  double seconds = 0, before = 0;
  for (const OrderedJson& line : training) {
    const double now = number(line, "seconds_train"), share = number(line, "loading_share");
    if (std::isfinite(now) && std::isfinite(share)) seconds += share * std::max(0.0, now - before);
    if (std::isfinite(now)) before = now;
  }
  return seconds;
}

// For each replica the seconds of each phase in all training lines. The time for data is not part of "waiting".
OrderedJson phases_of(const Lines& training) {
  OrderedJson sums = OrderedJson::array();
  for (const OrderedJson& line : training) {
    std::size_t replica = 0;
    if (const OrderedJson& phases = field(line, "phases"); phases.is_array())
      for (const OrderedJson& one : phases) {
        if (replica == sums.size()) sums.push_back(OrderedJson::object());
        OrderedJson& sum = sums[replica++];
        if (!one.is_object()) continue;
        for (const auto& [phase, seconds] : one.items())
          if (seconds.is_number()) sum[phase] = sum.value(phase, 0.0) + seconds.get<double>();
      }
  }
  const double loading = loading_seconds(training);
  for (OrderedJson& sum : sums) {
    if (sum.contains("waiting")) sum["waiting"] = std::max(0.0, sum["waiting"].get<double>() - loading);
    sum["data loading"] = loading;
  }
  return sums;
}

// Of more than kMostPoints lines of one kind: the means of the numbers of as many parts.
void add_lines(OrderedJson& all, const Lines& lines) {
  const std::size_t parts = std::min(lines.size(), kMostPoints);
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t begin = part * lines.size() / parts, end = (part + 1) * lines.size() / parts;
    OrderedJson mean = lines[begin];
    mean.erase("phases");
    if (end - begin > 1)
      for (const auto& [name, value] : lines[begin].items()) {
        const std::vector<double> values = values_of(std::span(lines).subspan(begin, end - begin), name.c_str());
        double sum = 0;
        for (const double one : values) sum += one;
        if (value.is_number()) mean[name] = sum / static_cast<double>(values.size());
      }
    all.push_back(std::move(mean));
  }
}

Run read_run(const std::string& folder) {
  std::error_code error;
  if (!fs::is_regular_file(folder + "/metrics.jsonl", error))
    throw Error(ErrorCode::data, "'" + folder + "' has no metrics.jsonl; name the folder of a run");
  Run run;
  run.name = fs::path(folder).lexically_normal().filename().string();
  if (run.name.empty() || run.name == ".") run.name = fs::canonical(folder, error).filename().string();
  run.summary = record_of(folder + "/summary.json");
  run.env = record_of(folder + "/env.json");
  run.predictions = record_of(folder + "/predictions.json");
  run.config = text_of(latest_config(folder));
  for (int rank = 0; rank < kMostRanks; ++rank) {
    OrderedJson crash = record_of(folder + (rank == 0 ? "/crash.json" : fmt::format("/crash.rank{}.json", rank)));
    if (crash.is_object()) run.crashes.push_back(std::move(crash));
  }
  std::ifstream lines(folder + "/metrics.jsonl", std::ios::binary);
  for (std::string text; std::getline(lines, text);) {
    OrderedJson line = parse_record<OrderedJson>(text);
    const std::string kind = word(line, "kind");
    const bool resumed = kind == "resumed";
    if (!resumed && !field(line, "step").is_number_integer()) continue;
    if (resumed)
      run.resumptions.push_back(std::move(line));
    else if (kind == "train")
      run.training.push_back(std::move(line));
    else if (kind == "eval")
      (field(line, "average") == true ? run.average_tests : run.tests).push_back(std::move(line));
  }
  return run;
}

OrderedJson data_of(const Run& run) {
  OrderedJson metrics = OrderedJson::array();
  for (const Lines* lines : {&run.training, &run.tests, &run.average_tests}) add_lines(metrics, *lines);
  for (const OrderedJson& line : run.resumptions) metrics.push_back(line);
  OrderedJson crashes = OrderedJson::array();
  for (const OrderedJson& crash : run.crashes) crashes.push_back(text_of_crash(crash));
  return {{"name", run.name},
          {"results", results_of(run)},
          {"warnings", warnings_of(run)},
          {"summary", run.summary},
          {"env", run.env},
          {"config", run.config},
          {"metrics", metrics},
          {"phases", phases_of(run.training)},
          {"crashes", crashes},
          {"predictions", run.predictions}};
}

// Where scripts are not allowed.
std::string text_of(const Run& run) {
  std::string text = run.name + "\n";
  const OrderedJson results = results_of(run);
  for (const auto& [name, value] : results.items()) text += fmt::format("  {}: {}\n", name, value.get<std::string>());
  for (const std::string& warning : warnings_of(run)) text += "  note: " + warning + "\n";
  return text;
}

// "step 120 of 9,380 (1.3 %), epoch 0, 5321 images/s, loss 0.123"; the time left if `active`.
std::string progress_of(const Run& run, bool active) {
  if (run.training.empty()) return "no step is recorded yet";
  const OrderedJson& line = run.training.back();
  const double step = number(line, "step"), rate = number(line, "images_per_second");
  const OrderedJson& part = last_part(run);
  const double last = number(part, "last_step"), batch = number(part, "global_batch");
  std::string text = "step " + with_separators(static_cast<std::int64_t>(step));
  if (last > 0)
    text += fmt::format(" of {} ({:.1f} %)", with_separators(static_cast<std::int64_t>(last)), 100 * step / last);
  text += fmt::format(", epoch {:.0f}, {:.0f} images/s, loss {}", number(line, "epoch"), rate,
                      shown(number(line, "loss"), "{:.4g}"));
  if (active && rate > 0 && last > step) text += ", time left " + duration((last - step) * batch / rate);
  return text;
}

// Figures of an evaluation, and their labels.
constexpr std::pair<const char*, const char*> kTestFigures[] = {{"top1", "Acc@1"}, {"top5", "Acc@5"}, {"loss", "loss"},
                                                                {"mae", "MAE"},    {"rmse", "RMSE"},  {"r2", "R2"},
                                                                {"f1", "F1"},      {"map", "mAP"}};

std::string evaluation_of(const Run& run) {
  const Lines& lines = run.average_tests.empty() ? run.tests : run.average_tests;
  if (lines.empty()) return "none yet";
  std::string text;
  for (const auto& [name, label] : kTestFigures)
    if (const double value = number(lines.back(), name); std::isfinite(value))
      text += fmt::format("{}{} {:.4g}", text.empty() ? "" : ", ", label, value);
  const auto best =
      std::find_if(lines.rbegin(), lines.rend(), [](const OrderedJson& line) { return field(line, "best") == true; });
  text += fmt::format(" at step {:.0f}", number(lines.back(), "step"));
  if (best != lines.rend() && best != lines.rbegin())
    text += fmt::format("; the best one is at step {:.0f}", number(*best, "step"));
  return text;
}

// The newest checkpoint by the step in its state; it may be replaced meanwhile.
std::string checkpoint_of(const std::string& folder) {
  const std::int64_t step = saved_step(folder);
  std::error_code error;
  const fs::file_time_type written = fs::last_write_time(folder + "/checkpoints/last/manifest.json", error);
  if (step < 0 || error) return "none yet";
  const auto age = std::chrono::duration<double>(fs::file_time_type::clock::now() - written);
  return fmt::format("step {}, {} ago", with_separators(step), duration(age.count()));
}

// The lines that follow the state of a run.
std::string details_of(const Run& run, const std::string& folder, bool active) {
  std::string text = "\nprogress    " + progress_of(run, active) + "\ntest        " + evaluation_of(run) +
                     "\ncheckpoint  " + checkpoint_of(folder) + "\n";
  for (const std::string& trouble : troubles_of(run)) text += "note        " + trouble + "\n";
  return text;
}

// Numbers of the last training line and the last evaluation.
void add_figures(OrderedJson& fields, const Run& run) {
  if (const std::string host = word(last_part(run), "host"); !host.empty()) fields["host"] = host;
  const auto add = [&](const std::string& name, const OrderedJson& value) {
    if (value.is_number()) fields[name] = value;
  };
  const OrderedJson line = run.training.empty() ? OrderedJson() : run.training.back();
  for (const char* const name : {"step", "epoch", "loss", "images_per_second"}) add(name, field(line, name));
  add("last_step", field(last_part(run), "last_step"));
  for (const auto& [name, label] : kTestFigures)
    if (const double value = last_test(run, name); std::isfinite(value)) fields[std::string("test_") + name] = value;
}

}  // namespace

std::int64_t saved_step(const std::string& run_folder) { return stated_step(run_folder + "/checkpoints/last"); }

std::string describe_run(const std::string& run_folder) {
  const Run run = read_run(run_folder);
  const std::optional<int> writer = writer_of(run_folder);
  const std::string end = word(run.summary, "end");
  return printable(run.name) + ": " +
         (writer         ? fmt::format("running, process {}", *writer)
          : !end.empty() ? "ended, " + printable(end)
                         : "not running on this host, and without a summary") +
         details_of(run, run_folder, writer.has_value());
}

std::vector<std::pair<std::string, std::string>> variables_of_end(const std::string& run_folder, int exit_status) {
  const auto is = [&](int number) { return exit_status == 128 + number; };
  const char* const status = exit_status == 0                        ? "complete"
                             : std::ranges::any_of(kStopSignals, is) ? "interrupted"
                                                                     : "failed";
  std::error_code error;
  const fs::path folder = fs::absolute(run_folder, error).lexically_normal();
  OrderedJson fields{{"run", folder.string()}, {"status", status}, {"exit_code", exit_status}};
  std::string text = fmt::format("{}: {}, exit status {}", printable(folder.filename().string()), status, exit_status);
  try {
    const Run run = read_run(run_folder);
    add_figures(fields, run);
    if (const std::int64_t step = saved_step(run_folder); step >= 0) fields["checkpoint_step"] = step;
    text += details_of(run, run_folder, false);
  } catch (const Error&) {  // it ended before it began
  }
  fields["text"] = text;
  std::vector<std::pair<std::string, std::string>> variables{{"DP_JSON", json_line(fields)}};
  for (const auto& [name, value] : fields.items()) {
    std::string variable = "DP_" + name;
    std::ranges::transform(variable, variable.begin(), [](unsigned char c) { return std::toupper(c); });
    variables.emplace_back(variable, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return variables;
}

void write_report(const std::vector<std::string>& run_folders, const std::string& file) {
  OrderedJson data{{"runs", OrderedJson::array()}};
  std::string title, text;
  for (const std::string& folder : run_folders) {
    const Run run = read_run(folder);
    title += (title.empty() ? "" : ", ") + run.name;
    text += text_of(run);
    data["runs"].push_back(data_of(run));
  }
  write_file_atomically(file, filled_page(title, text, data));
}

}  // namespace dp
