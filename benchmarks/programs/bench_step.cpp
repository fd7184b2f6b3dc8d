// Runs training steps, or evaluations, of one variant on command. A server: prints `ready` with its properties, then
// answers each `run <steps>` line on stdin with the seconds taken. Idle in between. Protocol: benchmarks/README.md.
#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>
#include <sys/resource.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

#include "benchmarks/programs/amp_names.h"
#include "benchmarks/programs/bare_loop.h"
#include "benchmarks/programs/pipeline_figures.h"
#include "benchmarks/programs/protocol.h"
#include "benchmarks/programs/random_batches.h"
#include "benchmarks/programs/ranks.h"
#include "dp/data_parallel.h"
#include "dp/error.h"
#include "dp/models.h"
#include "dp/standard_descriptors.h"

namespace {

using namespace dp::benchmarks;
using Weights = std::vector<std::pair<std::string, dp::Tensor>>;
using Clock = std::chrono::steady_clock;

constexpr dp::Sgd kSgd{.lr = 0.01f, .momentum = 0.9f};
constexpr int kCheckSteps = 3;   // before measuring; dp_bench compares their mean loss between variants
constexpr int kSettleSteps = 2;  // before each measurement: wake threads, warm caches

struct Options {
  std::string model = "mnist_convnet", variant = "dp", reduce = "auto", images_on = "host", gpus, save_inputs;
  std::vector<std::int64_t> input{1, 28, 28};
  std::int64_t classes = 10, batch = 64;
  int batches = 192, cpu = 1, threads = 1, replicas_per_device = 1;
  std::uint64_t seed = 42;
  bool exact_conv = false, inference = false;
  dp::Amp amp = dp::Amp::off;
  dp::PipelineOptions pipeline;
  RankOptions rank;
};

dp::Reduce parse_reduce(const std::string& name) {
  if (name == "master") return dp::Reduce::master;
  if (name == "allreduce") return dp::Reduce::all_reduce;
  return name == "sharded" ? dp::Reduce::sharded : dp::Reduce::automatic;
}

const char* name_of(dp::Reduce reduce) {
  if (reduce == dp::Reduce::master) return "master";
  if (reduce == dp::Reduce::all_reduce) return "allreduce";
  return reduce == dp::Reduce::sharded ? "sharded" : "auto";
}

CLI::CheckedTransformer schedule_names() {
  using enum dp::PipelineSchedule;
  return CLI::CheckedTransformer(std::map<std::string, dp::PipelineSchedule>{
      {"none", one_at_a_time}, {"gpipe", gpipe}, {"1f1b", one_f_one_b}, {"zb-h1", zero_bubble}});
}

std::vector<dp::Device> devices_of(const Options& options) {
  const bool is_rank = options.variant == "ddp";
  if (options.gpus.empty()) return dp::cpus(is_rank ? 1 : options.cpu);
  const std::vector<int> ids = dp::parse_gpu_list(options.gpus, dp::probe_devices(dp::DeviceKind::cuda).count);
  if (is_rank) return dp::gpus({ids.at(static_cast<std::size_t>(options.rank.rank))});
  std::vector<int> all;
  for (const int id : ids) all.insert(all.end(), static_cast<std::size_t>(options.replicas_per_device), id);
  return dp::gpus(all);
}

// An implementation: the bare loop over a plan, or DataParallel, alone or as a rank.
class Variant {
 public:
  virtual ~Variant() = default;
  virtual void step(const dp::Batch& batch) = 0;
  virtual double take_loss() = 0;  // mean over the samples since the last call; waits for all steps
  virtual std::string communicator() const { return "none"; }
  virtual std::string reduce() const { return "none"; }
  virtual std::optional<double> start_loss(const dp::Batch&) { return {}; }  // without dropout
  virtual Weights weights() const = 0;                                       // parameters, without buffers
  virtual std::size_t device_bytes() const = 0;                              // of the fullest device
  virtual Fields properties() const { return {}; }                           // of a pipeline
  virtual void begin_slice() {}
  virtual Fields end_slice(int, double) { return {}; }  // of the steps and seconds since begin_slice()
};

Weights trained_of(const dp::Model& model, const Weights& weights) {
  Weights trained;
  for (const auto& weight : weights)
    for (const dp::ParameterSpec& parameter : model.parameters())
      if (parameter.name == weight.first) trained.push_back(weight);
  return trained;
}

class Engine final : public Variant {
 public:
  // `rows`: size of this rank's shard of a batch.
  Engine(const dp::Model& model, const Options& options, const std::vector<dp::Device>& devices, std::int64_t rows)
      : trains_(!options.inference) {
    dp::DataParallelOptions parallel;
    parallel.devices = devices;
    parallel.process_group = join_process_group(options.rank);
    parallel.threads_per_replica = options.threads;
    parallel.reduce = parse_reduce(options.reduce);
    parallel.seed = options.seed;
    parallel.exact_convolutions = options.exact_conv;
    parallel.amp = options.amp;
    parallel.pipeline = options.pipeline;
    if (options.pipeline.stages == 1)
      parallel.grad_accum_steps = std::max(1, std::exchange(parallel.pipeline.micro_batches, 0));
    net_ = std::make_unique<dp::DataParallel>(model, parallel);
    net_->prepare(trains_ ? std::vector<std::int64_t>{rows} : std::vector<std::int64_t>{}, {rows});
  }
  void step(const dp::Batch& batch) override { trains_ ? net_->train_step(batch, kSgd) : net_->evaluate(batch); }
  double take_loss() override { return net_->take_stats().loss(); }
  std::string communicator() const override { return net_->communicator(); }
  std::string reduce() const override { return name_of(net_->options().reduce); }
  std::optional<double> start_loss(const dp::Batch& batch) override {
    dp::Batch plain = batch;
    plain.resident.augment = false;
    net_->evaluate(plain);
    return net_->take_stats().loss();
  }
  Weights weights() const override { return trained_of(net_->model(), net_->weights()); }
  std::size_t device_bytes() const override {
    // By GPU, which several replicas may share. Each CPU replica, and each rank, counts as a device.
    std::map<int, std::size_t> used;
    const std::vector<dp::Device>& devices = net_->options().devices;
    for (int i = 0; i < net_->size(); ++i) {
      const bool shares = std::ssize(devices) == net_->size() && devices.front().kind == dp::DeviceKind::cuda;
      used[shares ? devices[static_cast<std::size_t>(i)].index : i] += net_->memory_use(i).total();
    }
    return std::ranges::max_element(used, {}, [](const auto& one) { return one.second; })->second;
  }
  Fields properties() const override {
    const dp::PipelineOptions& pipeline = net_->options().pipeline;
    if (pipeline.stages == 1) return {};
    const std::string text = net_->describe_pipeline();  // "pipeline: 2 stages at layer3.0, 97 % balanced, bubble ..."
    const std::size_t from = text.find(": ") + 2;
    return {{"stages", text.substr(from, text.find(", bubble") - from)},
            {"bubble_formula", exact(bubble_of(pipeline))}};
  }
  void begin_slice() override { net_->take_phase_times(); }
  Fields end_slice(int steps, double seconds) override {
    const dp::PipelineOptions& pipeline = net_->options().pipeline;
    if (pipeline.stages == 1) return {};
    const PipelineFigures figures = pipeline_figures(pipeline, net_->take_phase_times(), steps, seconds);
    return {{"bubble", exact(figures.bubble)},
            {"balance", exact(figures.balance)},
            {"simulated_seconds", exact(figures.simulated)}};
  }

 private:
  const bool trains_;
  std::unique_ptr<dp::DataParallel> net_;
};

class Bare final : public Variant {
 public:
  Bare(const dp::Model& model, const Options& options, dp::Device device)
      : start_(first_weights(model, options)),
        loop_(model, start_, device, options.threads, options.seed, options.batch, options.exact_conv, options.amp) {}
  void step(const dp::Batch& batch) override { loop_.train_step(batch, kSgd); }
  double take_loss() override { return loop_.take_loss(); }
  Weights weights() const override { return start_; }
  std::size_t device_bytes() const override { return loop_.memory_use().total(); }

 private:
  // The initial weights of DataParallel, so that both variants start equal.
  static Weights first_weights(const dp::Model& model, const Options& options) {
    const dp::DataParallel one(model, {.devices = dp::cpus(1), .threads_per_replica = 1, .seed = options.seed});
    return trained_of(model, one.weights());
  }
  Weights start_;
  BareLoop loop_;
};

// This rank's shard of a batch: consecutive rows.
Range rows_of(const Options& options) {
  const std::int64_t rank = options.rank.rank, ranks = options.rank.ranks;
  return {options.batch * rank / ranks, options.batch * (rank + 1) / ranks};
}

double peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

class Server {
 public:
  explicit Server(const Options& options)
      : options_(options),
        model_(dp::models::find(options.model).make(dp::Shape(options.input), options.classes)),
        devices_(devices_of(options)) {
    const Range rows = rows_of(options);
    if (options.variant == "plan" && options.inference)
      throw dp::Error(dp::ErrorCode::usage, "the bare plan only trains");
    if (options.variant == "plan")
      variant_ = std::make_unique<Bare>(model_, options, devices_.front());
    else
      variant_ = std::make_unique<Engine>(model_, options, devices_, rows.size());
    const auto make = options.images_on == "device" ? resident_batches : random_batches;
    batches_ = make(model_, options.batch, options.batches, options.seed, rows);
    if (!options.save_inputs.empty()) save_inputs(options.save_inputs, variant_->weights(), batches_);
    start_loss_ = variant_->start_loss(batches_.front());
    run(kCheckSteps);
    check_loss_ = variant_->take_loss();
  }

  void introduce() const {
    const dnnl_version_t* dnnl = dnnl_version();
    Fields fields{{"program", "dp"},
                  {"check_loss", exact(check_loss_)},
                  {"batch_norm", model_.buffers().empty() ? "0" : "1"},
                  {"parameter_bytes", std::to_string(4 * model_.parameter_count())},
                  {"reduce", variant_->reduce()},
                  {"communicator", variant_->communicator()},
                  {"device", to_string(devices_.front())},
                  {"version:oneDNN", fmt::format("{}.{}.{}", dnnl->major, dnnl->minor, dnnl->patch)},
                  {"version:compiler", DP_BENCHMARK_COMPILER}};
    if (start_loss_) fields.emplace_back("start_loss", exact(*start_loss_));
    for (const auto& field : variant_->properties()) fields.push_back(field);
    say("ready", fields);
  }

  void answer(const std::string& line) {
    std::istringstream words(line);
    std::string command, rest;
    int steps = 0;
    if (!(words >> command >> steps) || command != "run" || steps < 1 || words >> rest)
      return say("error", {{"message", "the command '" + line + "'; known: run <steps>"}});
    run(kSettleSteps);
    variant_->take_loss();
    variant_->begin_slice();
    const auto start = Clock::now();
    run(steps);
    const double loss = variant_->take_loss();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (!std::isfinite(loss)) return say("error", {{"message", "the loss is not finite"}});
    const bool host = devices_.front().kind != dp::DeviceKind::cuda;
    const auto device_bytes = static_cast<double>(variant_->device_bytes());
    Fields fields{{"seconds", exact(seconds)},
                  {"loss", exact(loss)},
                  {"peak_bytes", exact(host ? peak_bytes() : device_bytes)},
                  {"device_bytes", exact(device_bytes)}};
    for (const auto& field : variant_->end_slice(steps, seconds)) fields.push_back(field);
    say("done", fields);
  }

 private:
  void run(int steps) {
    for (int i = 0; i < steps; ++i) variant_->step(batches_[next_++ % batches_.size()]);
  }

  const Options options_;
  const dp::Model model_;
  const std::vector<dp::Device> devices_;
  std::unique_ptr<Variant> variant_;
  std::vector<dp::Batch> batches_;
  std::optional<double> start_loss_;
  double check_loss_ = 0;
  std::size_t next_ = 0;  // number of the next step
};

}  // namespace

int main(int argc, char** argv) {
  dp::open_standard_descriptors();
  Options options;
  CLI::App app("Seconds of training steps, on demand: commands on stdin, answers on stdout");
  app.add_option("--variant", options.variant)->check(CLI::IsMember({"plan", "dp", "ddp"}))->capture_default_str();
  app.add_option("--model", options.model)->capture_default_str();
  app.add_option("--input", options.input, "Shape of a sample")->delimiter(',')->capture_default_str();
  app.add_option("--classes", options.classes)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch", options.batch, "Images per step")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batches", options.batches, "Number of distinct batches, used cyclically")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--cpu", options.cpu, "Replicas on the CPU")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--gpus", options.gpus, "Ids of GPUs instead");
  app.add_option("--replicas-per-device", options.replicas_per_device, "On each GPU")->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "Of each CPU replica")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--reduce", options.reduce)->check(CLI::IsMember({"auto", "master", "allreduce", "sharded"}));
  app.add_option("--images-on", options.images_on,
                 "host: float32 batches from the host; device: indices of device-resident bytes")
      ->check(CLI::IsMember({"host", "device"}));
  app.add_option("--stages", options.pipeline.stages, "Of a pipeline: neighbouring devices share a replica")
      ->check(CLI::PositiveNumber);
  app.add_option("--micro-batches", options.pipeline.micro_batches, "Per step")->check(CLI::PositiveNumber);
  app.add_option("--schedule", options.pipeline.schedule, "Of a pipeline: none, gpipe, 1f1b or zb-h1")
      ->transform(schedule_names());
  app.add_option("--cuts", options.pipeline.cuts, "Of a pipeline: the first layer of each stage but the first")
      ->delimiter(',');
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_flag("--exact-conv", options.exact_conv, "As dp_train's");
  app.add_flag("--inference", options.inference, "Evaluate instead of training, not with --variant plan");
  app.add_option("--amp", options.amp, "off, bf16 or fp16")->transform(amp_names());
  app.add_option("--save-inputs", options.save_inputs, "Write weights and batches to this file, for pytorch_step.py");
  add_rank_options(app, options.rank);
  CLI11_PARSE(app, argc, argv);
  try {
    Server server(options);
    server.introduce();
    for (std::string line; std::getline(std::cin, line);) server.answer(line);
  } catch (const std::exception& error) {
    say("error", {{"message", error.what()}});
    return 1;
  }
}
