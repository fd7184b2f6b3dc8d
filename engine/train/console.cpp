// The progress of a run on a terminal (one line, rewritten) or in a log (plain lines).
#include "engine/train/console.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "dp/shell.h"
#include "engine/base/split.h"
#include "engine/base/text.h"
#include "engine/step/parallel_option_table.h"
#include "engine/train/record/records.h"

namespace dp {
namespace {

// Columns of stdout's terminal now, which can be resized; 0: not a terminal.
Width terminal_width() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

class Console {
 public:
  explicit Console(const ConsoleOptions& options) : quiet_(options.quiet) {
    const bool terminal = ::isatty(STDOUT_FILENO) == 1;
    const char* name = std::getenv("TERM");
    const bool dumb = name != nullptr && std::string_view(name) == "dumb";
    const char* no_color = std::getenv("NO_COLOR");
    rewrite_ = terminal && !dumb && options.progress;
    colours_ = terminal && !dumb && (no_color == nullptr || *no_color == '\0');
  }
  ~Console() { finish_line(); }
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // The progress line of a terminal shows how close the steps are to their floor.
  void start(const DataParallel& net, std::int64_t batch) {
    if (!quiet_ && rewrite_) floor_per_image_ = net.step_floor(batch) / static_cast<double>(batch);
  }

  void step(const StepReport& report) {
    const double floor_share = report.images_per_second * floor_per_image_;
    progress(step_line(report, floor_share, width()), report.batch + 1 == report.batches);
  }

  void text(const std::string& text) {
    if (quiet_) return;
    finish_line();
    put(text);
  }

  Width width() const { return rewrite_ ? terminal_width() : 0; }

  void progress(const std::string& line, bool last) {
    if (quiet_) return;
    put(rewrite_ ? over_open_line(line) : line + "\n");
    open_line_ = progress_is_open_ = rewrite_;
    if (last) finish_line();
  }

  // On a terminal only, at most ten times a second. The last line is erased.
  void work(const WorkReport& report) {
    if (quiet_ || !rewrite_) return;
    const auto now = std::chrono::steady_clock::now();
    const bool ends = report.total > 0 && report.done == report.total;
    if (!ends && report.done > 0 && now - worked_ < std::chrono::milliseconds(100)) return;
    worked_ = now;
    if (progress_is_open_) finish_line();
    put(over_open_line(ends ? "" : work_line(report, width())));
    open_line_ = !ends;
  }

  void result(const std::string& line) { text(coloured(kBold, wrapped(line, width())) + "\n"); }

  void notice(const std::string& message) {
    if (quiet_)
      std::fputs((printable(message) + "\n").c_str(), stderr);
    else
      text(coloured(kYellow, wrapped(printable(message), width())) + "\n");
  }

 private:
  static constexpr const char *kBold = "\x1b[1m", *kYellow = "\x1b[33m";

  std::string coloured(const char* colour, const std::string& text) const {
    return colours_ ? colour + text + "\x1b[0m" : text;
  }

  // Ends an open progress line, and erases an open line about other work.
  void finish_line() {
    if (open_line_) put(progress_is_open_ ? "\n\x1b[J" : over_open_line(""));
    open_line_ = progress_is_open_ = false;
  }

  // Replaces the open line. The cursor returns to its beginning: a terminal that has become narrower shows the line in
  // several rows, and keeps the cursor in the first one.
  static std::string over_open_line(const std::string& line) { return "\r" + line + "\x1b[J\r"; }

  static void put(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }

  bool quiet_, rewrite_ = false, colours_ = false;
  bool open_line_ = false, progress_is_open_ = false;
  double floor_per_image_ = 0;  // seconds; 0: unknown
  std::chrono::steady_clock::time_point worked_{};
};

}  // namespace

TrainerCallbacks console_callbacks(const ConsoleOptions& options) {
  const auto console = std::make_shared<Console>(options);
  TrainerCallbacks callbacks;
  const auto classes = std::make_shared<std::int64_t>(0);
  callbacks.on_start = [console, classes](const DataParallel& net, const TrainerOptions& chosen) {
    *classes = net.model().output()[0];
    console->text(wrapped(start_table(net, chosen), console->width()));
    console->start(net, chosen.batch_size);
  };
  callbacks.on_step = [console](const StepReport& report) { console->step(report); };
  callbacks.on_work = [console](const WorkReport& report) { console->work(report); };
  callbacks.on_eval = [console, classes](const EvalReport& report) {
    if (report.alone) console->result(eval_line(report.stats, *classes, report.metrics));
  };
  callbacks.on_epoch = [console, classes](const EpochReport& report) {
    console->result(epoch_line(report, *classes, console->width()));
  };
  callbacks.on_message = [console](const std::string& message) { console->notice(message); };
  return callbacks;
}

void print_summary(const RunSummary& summary, const std::string& devices) {
  const Width width = terminal_width();
  std::fputs(wrapped(summary_text(summary, devices, width), width).c_str(), stdout);
  std::fflush(stdout);
}

namespace {

// A column of a line. If the line is too wide, the column with the highest rank is dropped first.
struct Column {
  int rank;
  std::string text;
  const char* before = "  ";
};

bool fits(const std::string& line, Width width) { return width == 0 || static_cast<int>(line.size()) < width; }

std::string joined(const std::vector<Column>& columns) {
  std::string line;
  for (const Column& column : columns) line += (line.empty() ? "" : column.before) + column.text;
  return line;
}

// Drops columns until the line fits, but only those whose rank is at least `least`.
std::vector<Column> without_some(std::vector<Column> columns, Width width, int least) {
  const auto rank_of = [](const Column& column) { return column.rank; };
  while (columns.size() > 1 && !fits(joined(columns), width)) {
    const auto last = std::ranges::max_element(columns, {}, rank_of);
    if (last->rank < least) break;
    columns.erase(last);
  }
  return columns;
}

std::string fitted(std::vector<Column> columns, Width width) {
  const std::string line = joined(without_some(std::move(columns), width, 0));
  return width > 0 ? line.substr(0, static_cast<std::size_t>(width - 1)) : line;
}

std::string numbered(std::int64_t done, std::int64_t total) {
  return fmt::format("[{:>{}}/{}]", done, std::to_string(total).size(), total);
}

// "[====>     ]"
std::string bar(std::int64_t done, std::int64_t total) {
  constexpr std::int64_t kCells = 20;
  const auto filled = static_cast<std::size_t>(kCells * std::clamp<std::int64_t>(done, 0, total) / total);
  std::string cells(filled, '=');
  if (filled < kCells) cells += '>';
  cells.resize(kCells, ' ');
  return "[" + cells + "]";
}

// "Epoch 0 [ 10/391]  0:00:12 left  9843 img/s  floor 71 %  data 2 %  loss 4.52  acc1 2.8", over the epoch so far.
std::string short_step_line(const StepReport& report, double floor_share, Width width) {
  std::vector<Column> columns{{0, fmt::format("Epoch {} {}", report.epoch, numbered(report.batch, report.batches))},
                              {3, duration(report.eta_seconds) + " left"},
                              {4, fmt::format("{:.0f} img/s", report.images_per_second)}};
  if (floor_share > 0) columns.push_back({5, fmt::format("floor {:.0f} %", 100 * floor_share)});
  columns.push_back({6, fmt::format("data {:.0f} %", 100 * report.loading_share)});
  columns.push_back({1, fmt::format("loss {:.3g}", report.epoch_so_far.loss())});
  if (report.epoch_so_far.has_labels)
    columns.push_back({2, fmt::format("acc1 {:.1f}", report.epoch_so_far.accuracy1())});
  return fitted(std::move(columns), width);
}

// "Acc@1 75.610" and "Acc@5 93.050", then the metrics, the most important first. Acc@5 only for more than five classes.
std::vector<std::string> results_of(double top1, double top5, std::int64_t classes,
                                    const std::vector<Metric>& metrics) {
  std::vector<std::string> results;
  if (!std::isnan(top1)) results.push_back(fmt::format("Acc@1 {:.3f}", top1));
  if (!std::isnan(top1) && classes > 5) results.push_back(fmt::format("Acc@5 {:.3f}", top5));
  static const std::map<std::string, std::string> kNames{
      {"mae", "MAE"}, {"rmse", "RMSE"}, {"r2", "R2"}, {"f1", "F1"}, {"map", "mAP"}};
  for (const Metric& metric : metrics) {
    const auto known = kNames.find(metric.name);
    results.push_back(fmt::format("{} {:.4g}", known == kNames.end() ? metric.name : known->second, metric.value));
  }
  return results;
}

}  // namespace

std::string step_line(const StepReport& report, double floor_share, Width width) {
  std::vector<Column> columns{{0, fmt::format("Epoch: [{}]", report.epoch)},
                              {1, numbered(report.batch, report.batches)}};
  constexpr int kBar = 9, kRate = 8;  // dropped before the short form is used
  if (width > 0) columns.push_back({kBar, bar(report.batch + 1, report.batches)});
  columns.push_back({4, "eta: " + duration(report.eta_seconds)});
  columns.push_back({kRate, fmt::format("lr: {:.4g}", report.lr)});
  columns.push_back({5, fmt::format("img/s: {:.0f}", report.images_per_second)});
  if (floor_share > 0) columns.push_back({6, fmt::format("floor: {:.0f} %", 100 * floor_share)});
  columns.push_back({7, fmt::format("data: {:.0f} %", 100 * report.loading_share)});
  columns.push_back({2, fmt::format("loss: {:.3g} ({:.3g})", report.recent.loss(), report.epoch_so_far.loss())});
  if (report.epoch_so_far.has_labels)
    columns.push_back(
        {3, fmt::format("acc1: {:.1f} ({:.1f})", report.recent.accuracy1(), report.epoch_so_far.accuracy1())});
  columns = without_some(std::move(columns), width, kRate);
  return fits(joined(columns), width) ? joined(columns) : short_step_line(report, floor_share, width);
}

std::string work_line(const WorkReport& report, Width width) {
  if (report.total == 0) return fitted({{0, report.what + " ..."}}, width);
  std::vector<Column> columns{{0, report.what + ": " + numbered(report.done, report.total)}};
  if (width > 0) columns.push_back({1, bar(report.done, report.total)});
  return fitted(std::move(columns), width);
}

std::string eval_line(const Stats& stats, std::int64_t classes, const std::vector<Metric>& metrics) {
  const auto results = results_of(stats.accuracy1(), stats.accuracy5(), classes, metrics);
  return fmt::format("Test: {}{}loss {:.3g}", fmt::join(results, " "), results.empty() ? "" : "  ", stats.loss());
}

std::string epoch_line(const EpochReport& report, std::int64_t classes, Width width) {
  std::vector<Column> columns;
  const bool trained = report.seconds > 0;  // a resumed run may only evaluate
  if (trained) columns.push_back({4, fmt::format("train loss {:.3g}", report.train.loss())});
  const auto add_test = [&](const char* name, const EvalReport& test, int rank) {
    const auto results = results_of(test.stats.accuracy1(), test.stats.accuracy5(), classes, test.metrics);
    const std::string loss = fmt::format("loss {:.3g}", test.stats.loss());
    const bool ranked = test.stats.has_labels;  // the accuracy comes first, else the loss
    columns.push_back({rank, fmt::format("{}Test: {}", name, ranked ? results.front() : loss)});
    for (std::size_t i = ranked ? 1 : 0; i < results.size(); ++i) columns.push_back({7, results[i], " "});
    if (ranked) columns.push_back({rank + 2, loss});
  };
  if (report.test) add_test("", *report.test, report.average ? 1 : 0);
  if (report.average) add_test("EMA ", *report.average, 0);
  if (trained) {
    columns.push_back({5, fmt::format("{:.1f} s", report.seconds)});
    columns.push_back({6, fmt::format("{:.0f} img/s", report.images_per_second)});
    columns.push_back({8, fmt::format("lr {:.4g}", report.lr)});
  }
  const std::string epoch = fmt::format("Epoch {}: ", report.epoch);
  return epoch + fitted(std::move(columns), width > 0 ? std::max(1, width - static_cast<int>(epoch.size())) : 0);
}

std::string describe_data(const DatasetPair& data) {
  std::vector<std::int64_t> images(static_cast<std::size_t>(data.train->classes()), 0);
  for (std::int64_t i = 0; i < data.train->size(); ++i) ++images.at(static_cast<std::size_t>(data.train->label(i)));
  const auto [least, most] = std::ranges::minmax(images);
  std::string text = fmt::format("data: {} training and {} test images\n", with_separators(data.train->size()),
                                 with_separators(data.test->size()));
  if (data.train->has_targets())
    text += fmt::format("{} target{} for each image", data.train->classes(), data.train->classes() == 1 ? "" : "s");
  else
    text += fmt::format("{} classes of {}{} training images", data.train->classes(),
                        least == most ? "" : with_separators(least) + " to ", with_separators(most));
  std::map<std::string, std::int64_t> counted;
  for (const auto& part : {data.train, data.test})
    for (const auto& [ending, files] : part->passed_over()) counted[printable(ending)] += files;
  if (counted.empty()) return text;
  std::vector<std::pair<std::string, std::int64_t>> others(counted.begin(), counted.end());
  std::ranges::stable_sort(others, std::greater(), [](const auto& other) { return other.second; });
  constexpr std::size_t kNamed = 5;
  text += "\nignored files that are not .jpg, .jpeg, .png or .webp:";
  for (std::size_t i = 0; i < std::min(kNamed, others.size()); ++i)
    text += fmt::format("{} {} {}", i == 0 ? "" : ",", with_separators(others[i].second), others[i].first);
  std::int64_t more = 0;
  for (std::size_t i = kNamed; i < others.size(); ++i) more += others[i].second;
  return more == 0 ? text : text + fmt::format(", {} with other endings", with_separators(more));
}

// "1", or with a pipeline "1.0": the replica and its stage.
std::string number_of(int device, int stages) {
  return stages == 1 ? std::to_string(device) : fmt::format("{}.{}", device / stages, device % stages);
}

std::string start_table(const DataParallel& net, const TrainerOptions& options) {
  const DataParallelOptions& chosen = net.options();
  const int stages = chosen.pipeline.stages, replicas = net.size() / stages;
  const int shards_each = std::max(1, chosen.logical_shards / replicas);
  const auto shards = chosen.split_weights.empty()
                          ? split_batch(options.batch_size, replicas * shards_each, chosen.split)
                          : split_batch(options.batch_size, chosen.split_weights);
  const auto rows = [&](int replica) {
    if (chosen.process_group) return (options.batch_size + replicas - 1 - replica) / replicas;
    std::int64_t sum = 0;
    for (int shard = replica * shards_each;
         shard < std::min((replica + 1) * shards_each, static_cast<int>(shards.size())); ++shard)
      sum += shards[static_cast<std::size_t>(shard)];
    return sum;
  };
  std::string out = fmt::format("{}: {} parameters, data set {}\n", printable(net.model().name()),
                                with_separators(net.model().parameter_count()), printable(options.dataset_name));
  const std::vector<std::string> devices = net.device_names();
  out += fmt::format("{:<7}  device       batch  threads      memory\n", chosen.process_group ? "rank" : "replica");
  for (int device = 0; device < net.size(); ++device) {
    const auto at = static_cast<std::size_t>(device);
    const bool cpu = chosen.devices.front().kind == DeviceKind::cpu;
    out += fmt::format("{:>7}  {:<10} {:>7} {:>8} {:>11}\n", number_of(device, stages), printable(devices[at]),
                       rows(device / stages), cpu ? std::to_string(chosen.threads_per_replica) : "-",
                       mebibytes(net.memory_use(device).total()));
  }
  const auto name = [&](const char* option) { return parallel_option_table().text(option, chosen); };
  out += fmt::format(
      "global batch {}, reduce {}{}, loss {}, split {}, bn {}, seed {}{}{}{}\n", options.batch_size, name("reduce"),
      chosen.reduce_dtype == DType::f32 ? ""
      : replicas * shards_each > 1      ? fmt::format(" in {}", to_string(chosen.reduce_dtype))
                                        : " (nothing to reduce)",
      name("loss"), engine::split_text(chosen), name("bn"), chosen.seed, chosen.deterministic ? ", deterministic" : "",
      chosen.amp == Amp::off ? "" : fmt::format(", amp {}", name("amp-dtype")),
      chosen.logical_shards ? fmt::format(", {} logical shards", chosen.logical_shards) : "");
  if (const std::string pipeline = net.describe_pipeline(); !pipeline.empty()) out += pipeline + "\n";
  const Choice graphs = net.graphs_choice();
  out += fmt::format("comm {}: {}\ngraphs {}: {}\n", net.communicator(), net.communicator_choice().reason, graphs.what,
                     graphs.reason);
  if (!options.output_dir.empty() && !options.dry_run)
    out += fmt::format("run folder {}\n", printable(options.output_dir));
  return out;
}

std::string phase_table(const std::vector<std::string>& devices, const std::vector<PhaseTimes>& times, Width width,
                        int stages) {
  if (times.empty()) return "";
  std::vector<Phase> shown = phases();
  std::erase_if(shown, [&](const Phase& phase) {  // only GPUs run steps as graphs
    return phase.seconds == &PhaseTimes::graph &&
           std::ranges::all_of(times, [](const PhaseTimes& each) { return each.graph == 0; });
  });
  constexpr std::size_t kFirst = 10, kColumn = 11;
  const std::size_t room = width > 0 ? static_cast<std::size_t>(width) : kFirst + 8 * kColumn;
  const std::size_t most = room > kFirst + kColumn ? (room - kFirst) / kColumn : 1;  // replicas side by side
  std::string out;
  for (std::size_t first = 0; first < times.size(); first += most) {
    const std::size_t end = std::min(first + most, times.size());
    const auto row = [&](const std::string& name, const std::function<std::string(std::size_t)>& cell) {
      out += fmt::format("{:<{}}", name, kFirst);
      for (std::size_t replica = first; replica < end; ++replica) out += fmt::format("{:>{}}", cell(replica), kColumn);
      out += "\n";
    };
    row("seconds", [&](std::size_t replica) {
      return (stages > 1 ? "stage " : "replica ") + number_of(static_cast<int>(replica), stages);
    });
    row("",
        [&](std::size_t replica) { return replica < devices.size() ? devices[replica].substr(0, kColumn - 1) : ""; });
    for (const Phase& phase : shown)
      row(phase.name, [&](std::size_t replica) { return fmt::format("{:.2f}", times[replica].*phase.seconds); });
  }
  return out;
}

std::string layer_table(const std::string& device, const std::vector<LayerTime>& layers) {
  double all = 0, floors = 0;
  for (const LayerTime& layer : layers) all += layer.seconds, floors += layer.floor_seconds;
  const auto row = [&](double seconds, double floor, const std::string& name, const std::string& implementation) {
    const std::string least = floor > 0 ? fmt::format("{:.3f}", 1e3 * floor) : "-";
    const std::string ratio = floor > 0 ? fmt::format("{:.1f}", seconds / floor) : "-";
    return fmt::format("{:>10.3f} {:>6.1f} {:>10} {:>7}  {:<36} {}\n", 1e3 * seconds,
                       all > 0 ? 100 * seconds / all : 0.0, least, ratio, printable(name), printable(implementation));
  };
  std::string out = fmt::format("Time per layer of replica 0 ({}), median of the traced steps\n", printable(device));
  out += fmt::format("{:>10} {:>6} {:>10} {:>7}  {:<36} {}\n", "ms", "%", "floor ms", "x floor", "layer",
                     "implementation");
  for (const LayerTime& layer : layers)
    out += row(layer.seconds, layer.floor_seconds, layer.name, layer.implementation);
  return out + row(all, floors, "all", "");
}

std::string wrapped(const std::string& text, Width width) {
  std::string out;
  for (std::size_t begin = 0; begin < text.size();) {
    std::string line = text.substr(begin, text.find('\n', begin) - begin);
    begin += line.size() + 1;
    const bool columns = line.find("   ") != std::string::npos;
    const bool command = line.find(" --resume ") != std::string::npos;  // to be copied from one line
    while (!columns && !command && !fits(line, width)) {
      const std::size_t space = line.find_last_of(' ', static_cast<std::size_t>(width - 1));
      if (space == std::string::npos || space <= 2) break;
      out += line.substr(0, space) + "\n";
      line = "  " + line.substr(space + 1);
    }
    out += line + (begin <= text.size() ? "\n" : "");
  }
  return out;
}

std::string summary_text(const RunSummary& summary, const std::string& devices, Width width) {
  std::string out;
  if (!summary.layers.empty())
    out += layer_table(summary.devices.empty() ? "" : summary.devices.front(), summary.layers);
  if (!summary.phases.empty()) {
    out += phase_table(summary.devices, summary.phases, width, summary.pipeline_stages);
    out += fmt::format("Trained to step {} (epoch {}) in {}, {:.0f} img/s, training loss {:.4g}\n", summary.steps,
                       summary.epochs, duration(summary.seconds_train), summary.images_per_second, summary.train_loss);
  }
  if (summary.skipped_steps > 0)
    out += fmt::format("{} of {} steps were skipped: a loss or gradient was not finite\n", summary.skipped_steps,
                       summary.steps);
  if (summary.bad_images && !summary.bad_images->empty())
    out += fmt::format("Bad images: {}, replaced by others of their class\n", summary.bad_images->size());
  if (!summary.interrupted && std::isnan(summary.test_loss) && std::isnan(summary.top1)) {
    out += "Result: not evaluated\n";
  } else if (!summary.interrupted) {
    const auto results = results_of(summary.top1, summary.top5, summary.classes, summary.metrics);
    out += fmt::format("Result: {}{}loss {:.3g}\n", fmt::join(results, " "), results.empty() ? "" : "  ",
                       summary.test_loss);
  }
  if (!summary.output_dir.empty()) out += fmt::format("run folder {}\n", printable(summary.output_dir));
  if (summary.interrupted)
    out += summary.output_dir.empty()
               ? "Interrupted\n"
               : fmt::format("Interrupted; continue with --resume {}{}{}\n", path_argument(summary.output_dir),
                             devices.empty() ? "" : " ", printable(devices));
  return out;
}

}  // namespace dp
