// Seconds per training step of a model on the CPU, in variants that a driver measures in turns with other programs. A server:
// commands on stdin, one JSON object a line on stdout; idle in between. benchmarks/README.md has the commands and variants.
#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <functional>
#include <iostream>
#include <sstream>

#include "benchmarks/bare_loop.h"
#include "benchmarks/random_batches.h"
#include "dp/data_parallel.h"
#include "dp/error.h"
#include "dp/models.h"
#include "kernels/host/cores.h"

namespace {

using dp::benchmarks::BareLoop;
using nlohmann::json;
using Weights = std::vector<std::pair<std::string, dp::Tensor>>;

constexpr dp::Sgd kSgd{.lr = 0.01f, .momentum = 0.9f};
constexpr int kCheckSteps = 3;   // before measuring, to see that all variants train alike
constexpr int kSettleSteps = 2;  // at the start of a slice: threads awake, this variant's memory in the caches

struct Options {
  std::string model = "mnist_convnet";
  std::vector<std::int64_t> input{1, 28, 28};
  std::int64_t classes = 10, batch = 64;
  int batches = 192, threads = 2;
  std::uint64_t seed = 42;
  bool fast_conv = false;
  std::string save_inputs;
};

struct Variant {
  std::string name;
  std::function<void(const dp::Batch&)> train_step;
  std::function<double()> take_loss;  // mean since the last call; returns when every step is done
  std::function<Weights()> weights;
  std::size_t next = 0;  // the batch of its next step
};

class Lab {
 public:
  explicit Lab(const Options& options)
      : options_(options),
        model_(dp::models::find(options.model).make(dp::Shape(options.input), options.classes)),
        batches_(dp::benchmarks::random_batches(model_, options.batch, options.batches, options.seed)) {
    dp::DataParallel& one = add_data_parallel("dp1", 1, options.threads);
    start_ = trained(one.weights());
    if (!options.save_inputs.empty()) dp::benchmarks::save_inputs(options.save_inputs, start_, batches_);
    one.evaluate(batches_.front());
    start_loss_ = one.take_stats().loss();

    bare_ = std::make_unique<BareLoop>(model_, start_, options.threads, options.seed, options.batch, options.fast_conv);
    variants_.push_back({"plan", [this](const dp::Batch& batch) { bare_->train_step(batch, kSgd); },
                         [this] { return bare_->take_loss(); }, [this] { return bare_->weights(); }});
    if (options.threads > 1) add_data_parallel(fmt::format("dp{}", options.threads), options.threads, 1);
    check_that_all_train_alike();
  }

  json describe() const {
    json names = json::array();
    for (const Variant& variant : variants_) names.push_back(variant.name);
    const dnnl_version_t* dnnl = dnnl_version();
    return {{"ready", "dp"},
            {"model", options_.model},
            {"batch", options_.batch},
            {"batches", options_.batches},
            {"threads", options_.threads},
            {"cores", dp::kernels::usable_cores()},
            {"variants", names},
            {"input", options_.input},
            {"classes", options_.classes},
            {"start_loss", start_loss_},
            {"differences", differences_},
            {"versions",
             {{"oneDNN", fmt::format("{}.{}.{}", dnnl->major, dnnl->minor, dnnl->patch)},
              {"compiler", DP_BENCHMARK_COMPILER}}}};
  }

  // "run <variant> <steps>" or "pair <a> <b> <steps> <slices>".
  json answer(const std::string& line) {
    std::istringstream words(line);
    std::string command, a, b;
    int steps = 0, slices = 0;
    words >> command >> a;
    if (command == "run" && words >> steps && steps > 0) return run(find(a), steps);
    if (command == "pair" && words >> b >> steps >> slices && steps > 0 && slices > 0)
      return pair(find(a), find(b), steps, slices);
    throw dp::Error(dp::ErrorCode::usage,
                    "the command '" + line + "'; known: run <variant> <steps>, pair <a> <b> <steps> <slices>");
  }

 private:
  dp::DataParallel& add_data_parallel(const std::string& name, int replicas, int threads) {
    dp::DataParallelOptions options;
    options.devices = dp::cpus(replicas);
    options.threads_per_replica = threads;
    options.seed = options_.seed;
    options.fast_convolutions = options_.fast_conv;
    auto made = std::make_shared<dp::DataParallel>(model_, options);
    made->prepare({options_.batch});
    variants_.push_back({name, [made](const dp::Batch& batch) { made->train_step(batch, kSgd); },
                         [made] { return made->take_stats().loss(); },
                         [this, made] { return trained(made->weights()); }});
    return *made;
  }

  // Without running statistics.
  Weights trained(const Weights& weights) const {
    Weights parameters;
    for (const auto& weight : weights)
      for (const dp::ParameterSpec& parameter : model_.parameters())
        if (parameter.name == weight.first) parameters.push_back(weight);
    return parameters;
  }

  Variant& find(const std::string& name) {
    for (Variant& variant : variants_)
      if (variant.name == name) return variant;
    throw dp::Error(dp::ErrorCode::usage, "no variant '" + name + "'; the first line of output lists them");
  }

  void train(Variant& variant, int steps) {
    for (int i = 0; i < steps; ++i) variant.train_step(batches_[variant.next++ % batches_.size()]);
  }

  // Seconds per step, and the mean loss of those steps.
  std::pair<double, double> measure(Variant& variant, int steps) {
    train(variant, kSettleSteps);
    variant.take_loss();
    const auto start = std::chrono::steady_clock::now();
    train(variant, steps);
    const double loss = variant.take_loss();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (!std::isfinite(loss)) throw dp::Error(dp::ErrorCode::nonfinite, variant.name + ": the loss is not finite");
    return {elapsed.count() / steps, loss};
  }

  json run(Variant& variant, int steps) {
    const auto [seconds, loss] = measure(variant, steps);
    return {{"variant", variant.name}, {"steps", steps}, {"seconds_per_step", seconds}, {"loss", loss}};
  }

  // Which of the two goes first changes from slice to slice.
  json pair(Variant& a, Variant& b, int steps, int slices) {
    std::vector<double> seconds_a, seconds_b;
    for (int slice = 0; slice < slices; ++slice) {
      if (slice % 2 == 0) seconds_a.push_back(measure(a, steps).first);
      seconds_b.push_back(measure(b, steps).first);
      if (slice % 2 != 0) seconds_a.push_back(measure(a, steps).first);
    }
    return {{"a", a.name}, {"b", b.name}, {"steps", steps}, {"seconds_a", seconds_a}, {"seconds_b", seconds_b}};
  }

  // What is measured against each other must do the same: from the same weights, the same steps lead to the same weights. With
  // batch normalisation several replicas do not, for each normalises by its own shard: the tests compare those.
  void check_that_all_train_alike() {
    Weights reference;
    for (Variant& variant : variants_) {
      if (!model_.buffers().empty() && variant.name != "dp1" && variant.name != "plan") continue;
      train(variant, kCheckSteps);
      variant.take_loss();
      const Weights weights = variant.weights();
      if (reference.empty()) reference = weights;
      double apart = 0, moved = 0;
      for (std::size_t t = 0; t < weights.size(); ++t)
        for (std::int64_t i = 0; i < weights[t].second.numel(); ++i) {
          const double w = weights[t].second.data<float>()[i], r = reference[t].second.data<float>()[i];
          apart += (w - r) * (w - r);
          moved += std::pow(r - start_[t].second.data<float>()[i], 2);
        }
      const double difference = std::sqrt(apart / moved);
      if (!(difference < 1e-3))
        throw dp::Error(
            dp::ErrorCode::device,
            fmt::format(
                "{} and {} train differently: after {} steps their weights are {:.2g} of the distance moved apart",
                variant.name, variants_.front().name, kCheckSteps, difference));
      differences_[variant.name] = difference;
    }
  }

  const Options options_;
  const dp::Model model_;
  const std::vector<dp::Batch> batches_;
  Weights start_;
  double start_loss_ = 0;  // of the first batch, without dropout
  std::unique_ptr<BareLoop> bare_;
  std::vector<Variant> variants_;
  json differences_;
};

void serve(Lab& lab) {
  std::cout << lab.describe() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    json answer;
    try {
      answer = lab.answer(line);
    } catch (const dp::Error& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Seconds per training step, on demand: commands on stdin, JSON lines on stdout");
  app.add_option("--model", options.model)->capture_default_str();
  app.add_option("--input", options.input, "Shape of a sample")->delimiter(',')->capture_default_str();
  app.add_option("--classes", options.classes)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch", options.batch, "Images per step")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batches", options.batches, "Different batches, used in turn")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Threads in all")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_flag("--fast-conv", options.fast_conv, "As dp_train's");
  app.add_option("--save-inputs", options.save_inputs, "Write weights and batches to this file, for pytorch_step.py");
  CLI11_PARSE(app, argc, argv);
  try {
    Lab lab(options);
    serve(lab);
  } catch (const std::exception& error) {
    std::cerr << "step: " << error.what() << '\n';
    return 1;
  }
}
