#include "subcommands.h"

#include <dp/dp.h>
#include <dp/error.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "images.h"

namespace dp_train {
namespace {

// "0.4914, 0.4822, 0.4465"
std::string listed(const std::vector<float>& values) {
  std::string text;
  char number[32];
  for (const float value : values) {
    std::snprintf(number, sizeof number, "%s%.4f", text.empty() ? "" : ", ", static_cast<double>(value));
    text += number;
  }
  return text;
}

}  // namespace

bool check_data(const Command& command) {
  std::optional<dp::TrainerCallbacks> console =
      dp::console_callbacks({.quiet = command.quiet, .progress = !command.no_progress});
  const dp::DatasetPair data = open_images(command, command.trainer.dataset_name);
  if (!command.quiet) std::printf("%s\n", dp::describe_data(data).c_str());
  const std::int64_t total = data.train->size() + data.test->size();
  std::int64_t before = 0;
  std::vector<std::string> faults;
  dp::Normalization measured;
  for (const auto& part : {data.train, data.test}) {
    const dp::ImageCheck of_part = dp::check_images(*part, command.trainer.workers, [&](std::int64_t done) {
      if (console->on_work) console->on_work({"Checking images", before + done, total});
    });
    faults.insert(faults.end(), of_part.faults.begin(), of_part.faults.end());
    if (part == data.train) measured = of_part.measured;
    before += part->size();
  }
  console.reset();  // ends an open progress line
  for (const std::string& fault : faults) std::printf("%s\n", dp::printable(fault).c_str());
  if (!command.quiet)
    std::printf("training images: mean %s, deviation %s\n", listed(measured.mean).c_str(),
                listed(measured.std).c_str());
  if (!command.quiet)
    std::printf("%lld images read, %zu of them bad%s\n", static_cast<long long>(total), faults.size(),
                faults.empty() ? "" : "; remove or replace them, or train with --bad-images skip");
  dp::flush_stdout();
  return faults.empty();
}

namespace {

double mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

// The process on the host, if its data set is there: its size determines the memory of the loader.
void print_process(const Command& command, const dp::Model& model, const dp::TrainerOptions& trainer) {
  std::optional<dp::DatasetPair> data;
  try {
    data = open_images(command, trainer.dataset_name);
  } catch (const dp::Error& error) {
    if (error.code() != dp::ErrorCode::data) throw;
    std::printf("host memory of the process: unknown without the data set (%s)\n", dp::printable(error.what()).c_str());
    return;
  }
  dp::TrainerOptions options = trainer;
  if (options.output_dir.empty()) options.output_dir = "runs";  // as a run, which saves checkpoints
  const dp::HostMemory memory = dp::estimate_host_memory(model, *data, options);
  const bool gpus = trainer.parallel.devices.front().kind == dp::DeviceKind::cuda;
  std::printf("host memory of the process, MiB%s\n", gpus ? ", without the GPU driver's" : "");
  const std::pair<const char*, std::size_t> rows[] = {
      {"program, libraries, data set, plans", memory.process},
      {"code that only steps need", memory.code},
      {"CPU replicas, with short last batches, in whole pages", memory.replicas},
      {"loader, decoding, cached images", memory.loaders},
      {"copies for a checkpoint", memory.copies},
      {"logits for the report", memory.records},
      {"threads", memory.threads},
      {"in all", memory.total()}};
  for (const auto& [name, bytes] : rows) std::printf("%9.1f  %s\n", mebibytes(bytes), name);
}

}  // namespace

void estimate_memory(const Command& command, const dp::models::Entry& entry, const dp::TrainerOptions& trainer) {
  const std::string& dataset = trainer.dataset_name;
  const std::int64_t batch = trainer.batch_size;
  const dp::DataParallelOptions options = dp::parallel_options(trainer);
  const ImageFormat images = image_format(command, dataset);
  const dp::Model model = entry.make(images.shape, images.classes);
  const auto replicas =
      dp::estimate_memory(model, options, {batch}, {std::max<std::int64_t>(batch, 128)}, trainer.optimizer);
  const int stages = options.pipeline.stages;
  std::printf("%s, %s, global batch %lld, MiB per %s\n", command.model.c_str(), dataset.c_str(),
              static_cast<long long>(batch), stages > 1 ? "stage of a replica (replica.stage)" : "replica");
  std::printf("replica   weights gradients optimizer statistics   average activations workspace     other     total\n");
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    const dp::MemoryUse& use = replicas[i];
    const auto each = static_cast<std::size_t>(stages);
    const std::string name = std::to_string(i / each) + (stages > 1 ? "." + std::to_string(i % each) : "");
    std::printf("%7s %9.1f %9.1f %9.1f %10.2f %9.1f %11.1f %9.1f %9.1f %9.1f\n", name.c_str(), mebibytes(use.weights),
                mebibytes(use.gradients), mebibytes(use.optimizer), mebibytes(use.statistics), mebibytes(use.average),
                mebibytes(use.activations), mebibytes(use.workspace), mebibytes(use.other), mebibytes(use.total()));
    if (use.snapshot != 0)
      std::printf("%7s %9.1f  more for checkpoints, if twice as much is free\n", "", mebibytes(use.snapshot));
  }
  print_process(command, model, trainer);
  const std::size_t free = dp::free_memory(options.devices.front());
  if (free == 0) {
    std::printf("free memory of the devices: unknown\n");
    return;
  }
  // Replicas on one device share its free memory. A tenth stays in reserve.
  const auto sharing = std::count(options.devices.begin(), options.devices.end(), options.devices.front());
  const std::size_t each = free / static_cast<std::size_t>(sharing) / 10 * 9;
  std::printf("largest global batch in %.0f MiB per device (90 %% of the free memory): %lld\n", mebibytes(each),
              static_cast<long long>(dp::largest_batch(model, options, each, trainer.optimizer)));
}

namespace {

using Weights = dp::NamedTensors;

constexpr std::int64_t kTrainingImages = 1024, kTestImages = 256;
constexpr dp::Sgd kSgd{.lr = 0.01f, .momentum = 0.9f};

std::string text(const char* format, double a, double b = 0) {
  char buffer[128];
  std::snprintf(buffer, sizeof buffer, format, a, b);
  return buffer;
}

dp::Model network() {
  dp::ModelBuilder m("selftest", dp::Shape{1, 28, 28});
  auto x = m.conv2d("conv1", m.input(), {.out_channels = 16, .kernel = 3, .padding = 1, .bias = false});
  x = m.max_pool2d(m.relu(m.batch_norm2d("bn1", x)), {.kernel = 2});
  const auto y = m.conv2d("conv2", x, {.out_channels = 16, .kernel = 3, .padding = 1});
  x = m.max_pool2d(m.relu(m.add(x, y)), {.kernel = 2});
  return m.build(m.linear("fc", m.flatten(x), {.out_features = 10}));
}

// A folder that is removed at the end.
class Scratch {
 public:
  Scratch() {
    std::error_code error;
    path_ = std::filesystem::temp_directory_path(error) / ("dp-selftest-" + std::to_string(stamp()));
    if (error || !std::filesystem::create_directory(path_, error))
      throw dp::Error(dp::ErrorCode::io, "cannot create a folder for temporary files: " + error.message() +
                                             "; set TMPDIR to a folder in which you may write");
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  static long long stamp() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
  std::filesystem::path path_;
};

class SelfTest {
 public:
  SelfTest(const std::vector<dp::Device>& devices, const std::atomic<int>& stop)
      : devices_(devices),
        stop_(stop),
        batch_(std::max<std::int64_t>(64, static_cast<std::int64_t>(devices.size()))),
        data_(dp::datasets::digits(kTrainingImages, kTestImages)) {}

  bool run() {
    std::string names;
    for (const dp::Device& device : devices_) names += (names.empty() ? "" : ", ") + dp::to_string(device);
    std::printf("devices: %s\n", names.c_str());
    check("the network learns", [this] { return learns(); });
    check("the replicas are identical, bit by bit", [this] { return identical(); });
    check("a step equals the float64 reference", [this] { return equals_reference(); });
    check("a checkpoint gives the same bits as training on", [this] { return round_trip(); });
    check("one replica gives the bits of all", [this] { return same_bits(); });
    if (stopped()) return false;
    std::printf(failed_ ? "selftest: %d of %d checks failed\n" : "selftest: all checks passed\n", failed_, checks_);
    return failed_ == 0;
  }

 private:
  struct Verdict {
    bool good;
    std::string figure;
  };

  bool stopped() const { return stop_.load() != 0; }

  void check(const char* what, const std::function<Verdict()>& body) {
    if (stopped()) return;
    Verdict verdict{false, ""};
    try {
      verdict = body();
    } catch (const dp::Error& error) {
      if (error.code() == dp::ErrorCode::io) throw;  // says nothing about the devices
      verdict.figure = error.what();
    }
    if (stopped()) return;
    ++checks_, failed_ += !verdict.good;
    std::printf("%-7s %s: %s\n", verdict.good ? "ok" : "FAILED", what, dp::printable(verdict.figure).c_str());
    std::fflush(stdout);
  }

  dp::DataParallelOptions options(const std::vector<dp::Device>& devices) const {
    dp::DataParallelOptions options{.devices = devices, .deterministic = true};
    options.batch_norm = dp::BatchNormMode::sync;
    options.timeout_seconds = 60;
    return options;
  }

  // Trains `steps` steps from this step on; returns the mean loss of the last.
  double train(dp::DataParallel& net, int steps, int first = 0) {
    dp::Loader loader(data_.train, {.batch_size = batch_});
    double loss = 0;
    int step = 0;
    for (std::uint64_t epoch = 0; step < first + steps && !stopped(); ++epoch)
      for (const dp::Batch& batch : loader.epoch(epoch)) {
        if (step >= first + steps || stopped()) break;
        if (step++ < first) continue;
        net.train_step(batch, kSgd);
        loss = net.take_stats().loss();
      }
    return loss;
  }

  Verdict learns() {
    dp::DataParallel net(network(), options(devices_));
    const double before = train(net, 1), after = train(net, 60, 1);
    dp::Loader test(data_.test, {.batch_size = batch_, .shuffle = false});
    for (const dp::Batch& batch : test.epoch(0)) net.evaluate(batch);
    const double top1 = net.take_stats().accuracy1();
    return {after < before / 2 && top1 > 50,
            text("loss %.2f -> %.2f in 61 steps, ", before, after) + text("Acc@1 %.1f", top1)};
  }

  Verdict identical() {
    dp::DataParallel net(network(), options(devices_));
    train(net, 5);
    const bool same = net.replicas_identical();
    const std::string replicas = std::to_string(net.size()) + (net.size() == 1 ? " replica" : " replicas");
    return {same, replicas + (same ? "" : " differ") + " after 5 steps"};
  }

  Verdict equals_reference() {
    constexpr int kSteps = 3;
    constexpr double kBound = 1e-4;  // of the distance moved; float32 gives about 1e-6
    dp::DataParallel net(network(), options(devices_));
    dp::DataParallel reference(network(), options({dp::Device{dp::DeviceKind::reference, 0}}));
    const Weights begin = reference.weights();
    train(net, kSteps), train(reference, kSteps);
    const double distance = difference(net.weights(), reference.weights()) / difference(begin, reference.weights());
    return {distance < kBound, text("%.1e of the distance moved in 3 steps, at most %.0e", distance, kBound)};
  }

  Verdict round_trip() {
    const Scratch scratch;
    dp::DataParallel net(network(), options(devices_));
    train(net, 3);
    dp::Checkpoint checkpoint;
    checkpoint.state.model = "selftest", checkpoint.state.dataset = "digits", checkpoint.state.step = 3;
    checkpoint.weights = net.weights(), checkpoint.optimizer = net.optimizer_state();
    dp::save_checkpoint(scratch.file("checkpoint"), checkpoint);
    train(net, 3, 3);
    const dp::Checkpoint saved = dp::load_checkpoint(scratch.file("checkpoint"));
    dp::DataParallel resumed(network(), options(devices_));
    resumed.set_weights(saved.weights);
    resumed.set_optimizer_state(saved.optimizer);
    resumed.set_step_count(saved.state.step);
    train(resumed, 3, 3);
    const std::string wanted = dp::weights_sha256(net.weights()), found = dp::weights_sha256(resumed.weights());
    return {wanted == found,
            "sha256 " + found.substr(0, 12) + (wanted == found ? "" : ", expected " + wanted.substr(0, 12))};
  }

  Verdict same_bits() {
    const auto trained = [&](const std::vector<dp::Device>& devices) {
      dp::DataParallelOptions some = options(devices);
      some.logical_shards = static_cast<int>(devices_.size());
      dp::DataParallel net(network(), some);
      train(net, 5);
      return dp::weights_sha256(net.weights());
    };
    const std::string all = trained(devices_), one = trained({devices_.front()});
    return {all == one, "--logical-shards " + std::to_string(devices_.size()) + ", sha256 " + all.substr(0, 12) +
                            (all == one ? "" : " and " + one.substr(0, 12))};
  }

  // The norm of a - b, whatever their types.
  static double difference(const Weights& a, const Weights& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
      for (std::int64_t at = 0; at < a[i].second.numel(); ++at) {
        const double d = value(a[i].second, at) - value(b[i].second, at);
        sum += d * d;
      }
    return std::sqrt(sum);
  }

  static double value(const dp::Tensor& tensor, std::int64_t at) {
    const auto index = static_cast<std::size_t>(at);
    switch (tensor.dtype()) {
      case dp::DType::f32: return static_cast<double>(tensor.span<float>()[index]);
      case dp::DType::f64: return tensor.span<double>()[index];
      default: return 0;  // counters
    }
  }

  const std::vector<dp::Device>& devices_;
  const std::atomic<int>& stop_;
  const std::int64_t batch_;
  dp::DatasetPair data_;
  int checks_ = 0, failed_ = 0;
};

}  // namespace

bool selftest(const std::vector<dp::Device>& devices, const std::atomic<int>& stop) {
  return SelfTest(devices, stop).run();
}

}  // namespace dp_train
