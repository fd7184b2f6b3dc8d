// Times each op of a model's plan. Runs the ops in the order of a training step, so that the caches are as in training.
// A server: prints `rates` and an `op` line for each distinct op, then answers `run <rounds>` with the median seconds
// of each. Protocol: benchmarks/README.md.
#include <omp.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <map>
#include <sstream>

#include "benchmarks/programs/amp_names.h"
#include "benchmarks/programs/bare_loop.h"
#include "benchmarks/programs/protocol.h"
#include "benchmarks/programs/random_batches.h"
#include "dp/data_parallel.h"
#include "dp/error.h"
#include "dp/models.h"
#include "dp/standard_descriptors.h"
#include "engine/observe/tracer.h"
#include "engine/plan/op_work.h"

namespace {

using namespace dp::benchmarks;
using Clock = std::chrono::steady_clock;

constexpr int kSettleRounds = 1;  // unmeasured, before each measurement

struct Options {
  std::string model = "mnist_convnet", gpu;
  std::vector<std::int64_t> input{1, 28, 28};
  std::int64_t classes = 10, batch = 64;
  int threads = 1;
  bool exact_conv = false;
  dp::Amp amp = dp::Amp::off;
};

struct Case {
  dp::engine::OpWork work;
  std::string implementation;
  int times = 0;  // per step
  std::vector<double> seconds{};
};

class Lab {
 public:
  explicit Lab(const Options& options)
      : model_(dp::models::find(options.model).make(dp::Shape(options.input), options.classes)),
        batch_(random_batches(model_, options.batch, 1, 42, {0, options.batch})),
        loop_(model_, first_weights(), device_of(options), options.threads, 42, options.batch, options.exact_conv,
              options.amp) {
    omp_set_num_threads(options.threads);
    const dp::engine::Plan& plan = loop_.plan();
    for (const auto* stage : {&plan.forward(), &plan.running_statistics(), &plan.loss(), &plan.backward()})
      for (const dp::engine::PlanStep& step : *stage) add(step);
    update_case_ = cases_.size();
    cases_.push_back({dp::engine::update_work(loop_.parameter_count()), "update", 1});
  }

  void introduce() {
    const dp::kernels::Rates rates = loop_.replica().context().rates();
    if (rates.flops > 0)
      say("rates",
          {{"gflops", exact(rates.flops * 1e-9)}, {"gbytes", exact(rates.bytes * 1e-9)}, {"source", rates.source}});
    else
      say("rates", {});
    for (const Case& one : cases_) {
      std::string numbers;
      for (const std::int64_t number : one.work.convolution)
        numbers += (numbers.empty() ? "" : " ") + std::to_string(number);
      say("op", {{"kind", one.work.kind},
                 {"label", one.work.label},
                 {"implementation", one.implementation},
                 {"times", std::to_string(one.times)},
                 {"flops", exact(one.work.flops)},
                 {"bytes", exact(one.work.bytes)},
                 {"convolution", numbers}});
    }
    say("ready", {{"program", "dp"}});
  }

  void answer(const std::string& line) {
    std::istringstream words(line);
    std::string command, rest;
    int rounds = 0;
    if (!(words >> command >> rounds) || command != "run" || rounds < 1 || words >> rest)
      return say("error", {{"message", "the command '" + line + "'; known: run <rounds>"}});
    for (int i = 0; i < kSettleRounds; ++i) step();
    for (Case& one : cases_) one.seconds.clear();
    for (int i = 0; i < rounds; ++i) step();
    std::string medians;
    for (Case& one : cases_) {
      const auto middle = one.seconds.begin() + static_cast<std::ptrdiff_t>(one.seconds.size() / 2);
      std::nth_element(one.seconds.begin(), middle, one.seconds.end());
      medians += (medians.empty() ? "" : " ") + exact(*middle);
    }
    say("done", {{"seconds", medians}});
  }

 private:
  static dp::Device device_of(const Options& options) {
    if (options.gpu.empty()) return {};
    return dp::gpus(dp::parse_gpu_list(options.gpu, dp::probe_devices(dp::DeviceKind::cuda).count)).front();
  }
  std::vector<std::pair<std::string, dp::Tensor>> first_weights() const {
    return dp::DataParallel(model_, {.devices = dp::cpus(1), .threads_per_replica = 1}).weights();
  }

  // Equal ops on equal shapes are one case.
  void add(const dp::engine::PlanStep& step) {
    dp::engine::OpWork work = dp::engine::work_of(step);
    auto found =
        std::find_if(cases_.begin(), cases_.end(), [&](const Case& one) { return one.work.shape == work.shape; });
    if (found == cases_.end()) found = cases_.insert(found, {std::move(work), step.op->implementation(), 0});
    ++found->times;
    case_of_[&step] = static_cast<std::size_t>(found - cases_.begin());
  }

  void step() { loop_.replica().context().host_accessible() ? timed_step() : traced_step(); }

  // Takes the device's timestamps: host times would include launches and synchronisation.
  void traced_step() {
    dp::kernels::Stream& compute = loop_.replica().compute();
    const dp::engine::Plan& plan = loop_.plan();
    loop_.begin(batch_.front(), {.lr = 1e-9f, .momentum = 0.9f});
    compute.trace(&ring_);
    ring_.recording = true;
    const std::size_t before = ring_.size() + ring_.dropped();
    for (const auto* stage : {&plan.forward(), &plan.running_statistics(), &plan.loss(), &plan.backward()})
      loop_.replica().runner.run(0, *stage);
    compute.detail(kUpdate);
    loop_.update();
    compute.trace(&ring_);
    ring_.recording = false;
    std::map<std::uint64_t, double> seconds;
    for (std::size_t i = ring_.size() - (ring_.size() + ring_.dropped() - before); i < ring_.size(); ++i)
      seconds[ring_.span(i).detail] += static_cast<double>(ring_.span(i).end - ring_.span(i).begin) * 1e-9;
    for (const auto& [step, which] : case_of_)
      cases_[which].seconds.push_back(seconds[dp::engine::layer_detail(step->name)]);
    cases_[update_case_].seconds.push_back(seconds[kUpdate]);
  }

  void timed_step() {
    Clock::time_point start;
    const auto stop = [&](std::size_t which) {
      loop_.replica().compute().synchronize();
      cases_[which].seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    };
    const auto after = [&](const dp::engine::PlanStep& step) {
      stop(case_of_.at(&step));
      start = Clock::now();
    };
    const dp::engine::Plan& plan = loop_.plan();
    loop_.begin(batch_.front(), {.lr = 1e-9f, .momentum = 0.9f});
    loop_.replica().compute().synchronize();
    start = Clock::now();
    for (const auto* stage : {&plan.forward(), &plan.running_statistics(), &plan.loss(), &plan.backward()})
      loop_.replica().runner.run_segment(0, *stage, /*first=*/true, after);
    loop_.update();
    stop(update_case_);
  }

  const dp::Model model_;
  const std::vector<dp::Batch> batch_;
  BareLoop loop_;
  std::vector<Case> cases_;
  std::map<const dp::engine::PlanStep*, std::size_t> case_of_;
  std::size_t update_case_ = 0;
  static constexpr std::uint64_t kUpdate = dp::engine::bucket_detail(0);
  dp::kernels::TraceRing ring_{1 << 14};  // spans of several steps
};

}  // namespace

int main(int argc, char** argv) {
  dp::open_standard_descriptors();
  Options options;
  CLI::App app("Seconds of each op of a training step, on demand: commands on stdin, answers on stdout");
  app.add_option("--model", options.model)->capture_default_str();
  app.add_option("--input", options.input, "Shape of a sample")->delimiter(',')->capture_default_str();
  app.add_option("--classes", options.classes)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch", options.batch, "Images per step")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--threads", options.threads)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--gpu", options.gpu, "Its id; else the CPU");
  app.add_flag("--exact-conv", options.exact_conv, "As dp_train's");
  app.add_option("--amp", options.amp, "off, bf16 or fp16")->transform(amp_names());
  CLI11_PARSE(app, argc, argv);
  try {
    Lab lab(options);
    lab.introduce();
    for (std::string line; std::getline(std::cin, line);) lab.answer(line);
  } catch (const std::exception& error) {
    say("error", {{"message", error.what()}});
    return 1;
  }
}
