#include "predict.h"

#include <dp/dp.h>
#include <dp/error.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <span>
#include <utility>

#include "command.h"
#include "command_line/command_line.h"
#include "devices.h"
#include "signals.h"

namespace dp_train {
namespace {

const std::vector<std::string_view> kOptions{
    "gpus",          "num-gpus", "cpu",   "replicas-per-device", "batch-size", "workers", "amp", "threads-per-replica",
    "deterministic", "timeout",  "quiet", "no-progress",         "amp-dtype"};

void add_files(const std::string& path, std::vector<std::string>& files) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return files.push_back(path);
  std::vector<std::string> found = dp::image_files(path);
  if (found.empty())
    throw dp::Error(dp::ErrorCode::data, path + ": no images (.jpg, .jpeg, .png or .webp) in this folder");
  files.insert(files.end(), std::make_move_iterator(found.begin()), std::make_move_iterator(found.end()));
}

std::vector<std::string> files_of(const std::vector<std::string>& images) {
  std::vector<std::string> files;
  for (const std::string& image : images) {
    if (image != "-") {
      add_files(image, files);
      continue;
    }
    for (std::string line; std::getline(std::cin, line);)
      if (!line.empty()) add_files(line, files);
  }
  if (files.empty()) throw dp::Error(dp::ErrorCode::data, "no images to predict: stdin has no paths");
  return files;
}

// A file of records, or stdout.
class Records {
 public:
  explicit Records(const std::string& path)
      : path_(path), file_(path == "-" ? stdout : std::fopen(path.c_str(), "w"), [](std::FILE* file) {
          return file == stdout ? 0 : std::fclose(file);
        }) {
    if (!file_) fail();
  }
  // Flushes after each record, so that an interrupted command leaves no incomplete one.
  void write(const std::string& record) {
    if (std::fwrite(record.data(), 1, record.size(), file_.get()) != record.size() || std::fflush(file_.get()) != 0)
      fail();
  }

 private:
  [[noreturn]] void fail() const {
    throw dp::Error(dp::ErrorCode::io, (path_ == "-" ? "stdout" : path_) + " cannot be written: " +
                                           std::strerror(errno) + "; give a file in a folder with free space");
  }

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

const char* text_of(dp::Scoring scoring) {
  switch (scoring) {
    case dp::Scoring::softmax: return "probabilities of classes of which an image has one (softmax)";
    case dp::Scoring::sigmoid: return "a probability for each class (sigmoid)";
    case dp::Scoring::plain: return "the network's outputs as they are";
  }
  return "";
}

// A row of the table: the path, and "  93.2 % cat" for each class, or "  width=0.5" for each output.
std::string row_of(const dp::Predictor& predictor, const std::string& path, std::size_t width,
                   const dp::FilePrediction& prediction, std::int64_t count) {
  const bool plain = predictor.scoring() == dp::Scoring::plain;
  std::string row = dp::printable(path);
  row.resize(std::max(row.size(), width), ' ');
  char number[64];
  for (const dp::Score& score : predictor.top(prediction.outputs, count)) {
    const std::string name = dp::printable(predictor.name_of(score.output));
    std::snprintf(number, sizeof number, plain ? "%.6g" : "  %5.1f %% ", plain ? score.value : 100 * score.value);
    row += !plain ? number + name : "  " + (predictor.classes().empty() ? "" : name + "=") + number;
  }
  return row + "\n";
}

// The width of the column of paths.
std::size_t width_of(const std::vector<std::string>& files) {
  constexpr std::size_t kMost = 48;
  std::size_t width = 0;
  for (const std::string& file : files) width = std::max(width, std::min(dp::printable(file).size(), kMost));
  return width;
}

dp::WeightsOf weights_of(const std::string& name) {
  if (name == "average") return dp::WeightsOf::average;
  return name == "last-step" ? dp::WeightsOf::last_step : dp::WeightsOf::automatic;
}

// Without a usable GPU: one CPU replica with all cores, unless options say otherwise.
std::vector<dp::Device> devices_of(const Command& command) {
  Devices devices = choose_devices(command);
  if (!devices.warning.empty())
    std::fprintf(stderr, "%s: warning: no usable GPU (%s); predicting on CPUs\n", program().name.c_str(),
                 dp::printable(dp::probe_devices(dp::DeviceKind::cuda).reason).c_str());
  if (!command.cpu && devices.list.front().kind == dp::DeviceKind::cpu) return dp::cpus(command.replicas_per_device);
  return devices.list;
}

// Predicts the files and prints what it finds.
class Run {
 public:
  Run(const Command& command, const std::vector<std::string>& files)
      : options_(command.predict),
        files_(files),
        table_(!options_.csv && !options_.jsonl),
        to_stdout_(options_.csv == "-" || options_.jsonl == "-"),
        quiet_(command.quiet || to_stdout_),
        console_(dp::console_callbacks({.quiet = quiet_, .progress = !command.no_progress})),
        width_(width_of(files)) {
    if (options_.csv) csv_.emplace(*options_.csv);
    if (options_.jsonl) jsonl_.emplace(*options_.jsonl);
  }

  void start(const std::string& text) { work(text, 0, 0); }

  void predict(dp::Predictor& predictor) {
    work("Planning layers", 1, 1);
    if (!quiet_) std::printf("%s\n", title_of(predictor).c_str()), std::fflush(stdout);
    if (csv_) csv_->write(dp::prediction_names_as_csv(predictor, options_.top));
    const auto begin = std::chrono::steady_clock::now();
    predictor.predict_files(files_, [&](const dp::FilePrediction& one) { take(predictor, one); });
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!table_ && done_ < total()) work("Predicting", total(), total());  // erases the line of a stopped command
  }

  // Lists the files that could not be read. Returns false if there is nothing else.
  bool end(bool interrupted) {
    console_.reset();
    const auto bad = static_cast<std::int64_t>(faults_.size());
    if (!quiet_) {
      std::printf("%s%lld of %lld images predicted in %.1f s, %.0f img/s\n", interrupted ? "Interrupted: " : "",
                  static_cast<long long>(done_ - bad), static_cast<long long>(total()), seconds_,
                  seconds_ > 0 ? static_cast<double>(done_ - bad) / seconds_ : 0.0);
      for (const auto& file : {options_.csv, options_.jsonl})
        if (file) std::printf("%s\n", dp::printable(*file).c_str());
    }
    dp::flush_stdout();
    if (bad > 0)
      std::fprintf(stderr, "%s: %lld %s\n", program().name.c_str(), static_cast<long long>(bad),
                   bad == 1 ? "image cannot be read and was skipped:" : "images cannot be read and were skipped:");
    for (const std::string& fault : faults_) std::fprintf(stderr, "  %s\n", dp::printable(fault).c_str());
    return done_ > bad;
  }

 private:
  std::int64_t total() const { return static_cast<std::int64_t>(files_.size()); }
  void work(const std::string& what, std::int64_t done, std::int64_t total) {
    if (console_->on_work) console_->on_work({what, done, total});
  }

  std::string title_of(const dp::Predictor& predictor) const {
    std::string devices;
    for (const std::string& name : predictor.device_names()) devices += (devices.empty() ? "" : ", ") + name;
    return dp::printable(predictor.model().name() + " on " + devices + ": " + text_of(predictor.scoring()));
  }

  void take(const dp::Predictor& predictor, const dp::FilePrediction& one) {
    const std::string& path = files_[static_cast<std::size_t>(one.index)];
    ++done_;
    if (!one.fault.empty()) {
      faults_.push_back(one.fault);
    } else {
      if (csv_) csv_->write(dp::prediction_as_csv(predictor, path, one.outputs, options_.top));
      if (jsonl_) jsonl_->write(dp::prediction_as_json(predictor, path, one.outputs, options_.top));
      if (table_) std::fputs(row_of(predictor, path, width_, one, options_.top).c_str(), stdout), std::fflush(stdout);
    }
    if (!table_) work("Predicting", done_, total());  // the rows of a table show the progress
  }

  const PredictOptions& options_;
  const std::vector<std::string>& files_;
  const bool table_, to_stdout_, quiet_;
  std::optional<dp::TrainerCallbacks> console_;
  std::optional<Records> csv_, jsonl_;
  std::size_t width_;
  std::int64_t done_ = 0;
  double seconds_ = 0;
  std::vector<std::string> faults_;
};

}  // namespace

const std::vector<std::string_view>& add_predict(CLI::App& app, Command& command) {
  PredictOptions& options = command.predict;
  CLI::App* const predict = app.add_subcommand("predict",
                                               "print what a trained network finds in images, on every GPU or else one "
                                               "CPU replica, and exit: 3 if no image can be read");
  predict
      ->add_option("images", options.images,
                   "image files, folders (with the folders in them), or - for paths from stdin, one a line")
      ->required();
  predict
      ->add_option(
          "--checkpoint", options.checkpoint,
          "a run folder (its checkpoint best, or else last), a checkpoint, or a file with weights that dp_train saved")
      ->required()
      ->check(command_line::accepts(dp::accepts::text("a run folder")));
  predict->add_option("--top", options.top, "number of classes for each image")
      ->check(command_line::accepts(dp::accepts::whole(1, 1 << 20)))
      ->default_str("5");
  predict->add_option("--csv", options.csv, "write the predictions to this file instead, or - for stdout")
      ->check(command_line::accepts(dp::accepts::text("a file")));
  predict->add_option("--jsonl", options.jsonl, "the same as JSON lines")
      ->check(command_line::accepts(dp::accepts::text("a file")));
  predict
      ->add_option("--weights", options.weights,
                   "average: the moving average of the weights; last-step: the weights; automatic: the average if "
                   "there is one")
      ->check(command_line::accepts(dp::accepts::one_of({"automatic", "last-step", "average"})))
      ->default_str("automatic");
  command_line::add_options(*predict, command_table(), command, command.given, kOptions);
  return kOptions;
}

int predict(const Command& command, Signals& signals) {
  const PredictOptions& own = command.predict;
  if (own.csv && own.csv == own.jsonl) usage("--csv and --jsonl name the same file; give two");
  const std::vector<std::string> files = files_of(own.images);
  Run run(command, files);
  run.start("Reading weights");
  dp::TrainedModel network = dp::read_trained_model(own.checkpoint, weights_of(own.weights));
  if (!network.preprocessing)
    throw dp::Error(dp::ErrorCode::data, own.checkpoint + " does not record how the images of its network are " +
                                             "prepared; give a checkpoint of a run");
  dp::PredictorOptions options{.parallel = command.trainer.parallel,
                               .batch_size = command.trainer.batch_size,
                               .workers = command.trainer.workers};
  options.parallel.devices = devices_of(command);
  options.parallel.stop = &signals.received;
  run.start("Planning layers");
  dp::Predictor predictor(std::move(network), options);
  run.predict(predictor);
  const int number = received_signal();
  const bool some = run.end(number != 0);
  if (number != 0) return 128 + number;
  return some ? 0 : static_cast<int>(dp::ErrorCode::data);
}

}  // namespace dp_train
