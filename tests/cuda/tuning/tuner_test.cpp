// The tuner: which choices are cached, which candidates are tried, and that the chosen one computes the same result.
// The times are made up, because times of the simulation have no meaning.
#include "kernels/tuning/tuner.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "cuda/engine/narrow_nets.h"
#include "cuda/simulated_gpus.h"
#include "engine/base/test_modes.h"
#include "kernels/device/cuda/context.h"
#include "kernels/tuning/trial.h"
#include "support/temporary_folder.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::kernels::cuda;
using namespace dp::test;

namespace {

TensorDesc tensor(const Shape& shape) { return {shape, DType::f32, channels_last(shape, DType::f32)}; }

Conv2dForward small_convolution(bool relu = false) {
  return {tensor({2, 8, 9, 9}), tensor({40, 8, 3, 3}), tensor({2, 40, 9, 9}), {3, 1, 1}, true, relu};
}

std::unique_ptr<CudaOp> make_with(const Conv2dForward& desc, const GemmChoice& choice) {
  CudaOpOptions options;
  options.gemm = choice;
  return make(desc, options);
}

// Sets an environment variable during the object's lifetime.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

class FailingOp final : public CudaOp {
 protected:
  void enqueue(cudaStream_t, std::span<void* const>, void*) override { throw Error(ErrorCode::device, "it fails"); }
};

// A tuner with given times.
class FakeTimes final : public Tuner {
 public:
  FakeTimes(const std::string& folder, const std::string& machine, std::function<double(std::size_t)> time)
      : Tuner(folder, machine), time_(std::move(time)) {}
  std::string choose(const Conv2dForward& desc = small_convolution()) {
    auto baseline = make(desc, CudaOpOptions{});
    const std::vector<Candidate> others = other_candidates(desc, *baseline, {});
    return as_op(Tuner::choose(desc, std::move(baseline), {others, {}, {}}))->implementation();
  }
  int tries = 0;
  double seconds_a_candidate = 0;

 private:
  double seconds() const override { return now_; }
  std::vector<TrialResult> try_all(const OpDesc&, std::span<CudaOp* const> ops,
                                   const std::function<bool()>& out_of_time) override {
    ++tries;
    std::vector<TrialResult> results(ops.size());
    for (std::size_t i = 0; i < ops.size() && (i == 0 || !out_of_time()); ++i) {
      now_ += seconds_a_candidate;
      const double time = time_(i);
      results[i] = {time < kUnfit ? Verdict::fit : Verdict::differs, time};
    }
    return results;
  }
  double now_ = 0;
  std::function<double(std::size_t)> time_;
};

double third_is_best(std::size_t i) { return i == 2 ? 12.34 : 20.0; }

std::string baseline_name() { return make(small_convolution(), CudaOpOptions{})->implementation(); }
std::string name_of_alternative(std::size_t i) {
  const auto baseline = make(small_convolution(), CudaOpOptions{});
  return make_with(small_convolution(), baseline->alternatives().at(i - 1))->implementation();
}

}  // namespace

TEST_CASE("tuner: the fastest candidate is selected, timed once, and cached on disk") {
  SimulatedGpus machine(1);
  const TemporaryFolder folder;
  FakeTimes first(folder.path(), "a GPU", third_is_best);
  const std::string chosen = name_of_alternative(2) + ", 12.3 us";
  CHECK(first.choose() == chosen);
  CHECK(first.choose() == chosen);
  CHECK(first.tries == 1);
  first.choose(small_convolution(/*relu=*/true));
  CHECK(first.tries == 2);  // another problem
  FakeTimes later(folder.path(), "a GPU", [](std::size_t) { return 1.0; });
  CHECK(later.choose() == chosen);
  CHECK(later.tries == 0);
  FakeTimes elsewhere(folder.path(), "another driver", [](std::size_t i) { return 5.0 - static_cast<double>(i % 2); });
  CHECK(elsewhere.choose() == name_of_alternative(1) + ", 4.0 us");
  CHECK(elsewhere.tries == 1);
}

TEST_CASE("tuner: code compiled for an older device uses no tensor cores of a newer one") {
  SimulatedGpus machine(1);
  CHECK(options_of_device(0).compute_capability == 90);
  CHECK(options_of_device(0).wgmma);
  simt::simulation().compiled_for = 75;
  CHECK(options_of_device(0).compute_capability == 75);
  simt::simulation().compiled_for = 90;
  simt::simulation().compute_capability = 86;
  CHECK(options_of_device(0).compute_capability == 86);
  CHECK(!options_of_device(0).wgmma);
  simt::simulation().compute_capability = 100;  // can run code for 9.0, but not for sm_90a
  CHECK(options_of_device(0).compute_capability == 90);
  CHECK(!options_of_device(0).wgmma);
}

TEST_CASE("tuner: the log has every candidate's time and the rejected ones") {
  SimulatedGpus machine(1);
  const TemporaryFolder folder;
  const std::string file = folder / "new/log";
  {
    const Variable logged("DP_TUNING_LOG", file);
    FakeTimes("", "a GPU", [](std::size_t i) { return i == 1 ? kUnfit : 3.0 + static_cast<double>(i); }).choose();
  }
  FakeTimes("", "a GPU", third_is_best).choose();  // not logged
  const std::string problem = problem_of(small_convolution(), *make(small_convolution(), CudaOpOptions{})) + "\t";
  const std::string text = read_text(file);
  CHECK(text.starts_with(problem + baseline_name() + "\t3.000\n" + problem + name_of_alternative(1) +
                         "\t-\tdiffers from the baseline\n" + problem + name_of_alternative(2) + "\t5.000\n"));
  const auto candidates = make(small_convolution(), CudaOpOptions{})->alternatives().size() + 1;
  CHECK(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) == candidates);
}

TEST_CASE(
    "tuner: after DP_TUNING_SECONDS the best candidate so far and the baselines are used for the rest of the run") {
  SimulatedGpus machine(1);
  const TemporaryFolder folder;
  const std::string log = folder / "log";
  const Variable limited("DP_TUNING_SECONDS", "11.5"), logged("DP_TUNING_LOG", log);
  Conv2dForward third = small_convolution();
  third.window.padding = 0, third.y = tensor({2, 40, 7, 7});
  const std::size_t candidates = make(small_convolution(), CudaOpOptions{})->alternatives().size() + 1;
  const std::string over = "the 11.5 s of DP_TUNING_SECONDS are over";
  {
    FakeTimes tuner(folder.path(), "a GPU", third_is_best);
    tuner.seconds_a_candidate = 9.0 / static_cast<double>(candidates);
    CHECK(tuner.choose() == name_of_alternative(2) + ", 12.3 us");
    tuner.seconds_a_candidate = 1;
    const std::string partly = ", 12.3 us, 3 of " + std::to_string(candidates) + " tried: " + over;
    const std::string best = tuner.choose(small_convolution(/*relu=*/true));
    CHECK(best.ends_with(partly));
    CHECK(tuner.choose(small_convolution(/*relu=*/true)) == best);
    for (int replica = 0; replica < 2; ++replica) CHECK(tuner.choose(third).ends_with(", not tried: " + over));
    CHECK(tuner.tries == 2);
    CHECK(tuner.choose() == name_of_alternative(2) + ", 12.3 us");  // a known choice stays
  }
  const std::string text = read_text(log);
  CHECK(text.find("\t-\tnot tried\n") != std::string::npos);
  const std::string last = "\t-\tnot tried: " + over + "\n";
  CHECK(text.ends_with(last));
  CHECK(text.find(last) == text.size() - last.size());  // once for both replicas
  // A later run reuses the choices that were measured completely.
  FakeTimes later(folder.path(), "a GPU", third_is_best);
  for (const Conv2dForward& desc : {small_convolution(), small_convolution(/*relu=*/true), third}) later.choose(desc);
  CHECK(later.tries == 2);
}

TEST_CASE("tuner: DP_TUNING_SECONDS must be a number of seconds, and 0 disables tuning") {
  SimulatedGpus machine(1);
  FakeTimes tuner("", "a GPU", third_is_best);
  for (const char* const wrong : {"soon", "-1", "3s", "nan"}) {
    const Variable limited("DP_TUNING_SECONDS", wrong);
    CHECK_THROWS_AS(tuner.choose(), Error);
  }
  const Variable none("DP_TUNING_SECONDS", "0");
  CHECK(tuner.choose() == baseline_name() + ", not tried: the 0 s of DP_TUNING_SECONDS are over");
  CHECK(tuner.tries == 0);
}

TEST_CASE("tuner: cached choices of eager timing are not used") {
  SimulatedGpus machine(1);
  const std::string now = machine_of(0), added = "; trials in graphs, beyond the cache";
  REQUIRE(now.ends_with(added));
  const TemporaryFolder folder;
  TuningCache(folder.path(), now.substr(0, now.size() - added.size())).keep("a problem", {"candidate", 1});
  CHECK(!TuningCache(folder.path(), now).find("a problem"));
}

TEST_CASE(
    "tuner: a cached candidate that no longer exists is tuned again, and without any candidate the baseline is used") {
  SimulatedGpus machine(1);
  const TemporaryFolder folder;
  const Conv2dForward desc = small_convolution();
  TuningCache(folder.path(), "a GPU").keep(problem_of(desc, *make(desc, CudaOpOptions{})), {"own:gemm of old", 1});
  FakeTimes tuner(folder.path(), "a GPU", third_is_best);
  tuner.choose();
  CHECK(tuner.tries == 1);
  FakeTimes none("", "a GPU", [](std::size_t) { return kUnfit; });
  CHECK(none.choose() == baseline_name());
}

TEST_CASE("tuner: alternatives differ from each other and from the baseline") {
  for (const GemmShape shape : {GemmShape{162, 40, 72, 1, 6480}, GemmShape{576, 64, 524288, 1, 36864},
                                GemmShape{131072, 64, 576, 1, 8388608}}) {
    const GemmChoice chosen = cuda::choose(shape);
    std::set<std::pair<int, int>> seen{{static_cast<int>(chosen.tile), chosen.splits}};
    const auto others = alternatives(shape, 7);
    CHECK(others.size() >= 4);
    CHECK(others.size() <= 7);
    for (const GemmChoice& choice : others) CHECK(seen.insert({static_cast<int>(choice.tile), choice.splits}).second);
  }
  CHECK(alternatives({}, 7).empty());
}

TEST_CASE("tuner: every candidate computes the same result, and one that differs is rejected") {
  SimulatedGpus machine(1);
  CudaContext context({DeviceKind::cuda, 0}, {});
  context.bind_thread();
  const TensorDesc x = tensor({2, 8, 6, 6}), w = tensor({12, 8, 3, 3}), y = tensor({2, 12, 6, 6});
  const TensorDesc features = tensor({3, 20, 1, 1}), matrix = tensor({7, 20, 1, 1}), outputs = tensor({3, 7, 1, 1});
  const OpDesc descs[] = {Conv2dForward{x, w, y, {3, 1, 1}, true, true}, Conv2dBackwardData{y, w, x, {3, 1, 1}},
                          Conv2dBackwardWeights{x, y, w, {3, 1, 1}, true}};
  for (const OpDesc& desc : descs)
    std::visit(
        [&](const auto& d) {
          Tuner tuner("", "a GPU");
          auto baseline = make(d, CudaOpOptions{});
          const std::vector<Candidate> others = other_candidates(desc, *baseline, {});
          for (const Candidate& candidate : others) CHECK(candidate.make()->implementation() == candidate.name);
          const auto op = as_op(tuner.choose(desc, std::move(baseline), {others, {}, {}}));
          INFO(op->implementation());
          CHECK(op->implementation().ends_with(" us"));  // a candidate was timed and agreed
        },
        desc);
  // Wrong candidates: an op for another problem, one that fails in make(), one that fails when it runs, and null.
  const Conv2dForward desc = small_convolution(), other = small_convolution(/*relu=*/true);
  const GemmChoice some = make(desc, CudaOpOptions{})->alternatives().front();
  const std::vector<Candidate> wrong = {
      {family::gemm, "another", [&] { return make_with(other, some); }},
      {family::gemm, "refused", []() -> std::unique_ptr<CudaOp> { throw Error(ErrorCode::device, "no"); }},
      {family::gemm, "failing", [] { return std::make_unique<FailingOp>(); }},
      {family::gemm, "nothing", [] { return nullptr; }}};
  Tuner tuner("", "a GPU");
  CHECK(as_op(tuner.choose(desc, make(desc, CudaOpOptions{}), {wrong, {}, {}}))
            ->implementation()
            .starts_with(baseline_name() + ", "));
}

TEST_CASE("tuner: replicas train with the same choices, deterministic runs with baselines only") {
  SimulatedGpus machine(2);
  const Model model = narrow_convnet();
  DataParallelOptions options = on_gpus(2, 2);
  const Batch batch = random_batch(model, 8);
  const auto baseline = step(model, options, batch);
  DataParallel before(model, options);
  options.autotune = true;
  const auto tuned = step(model, options, batch);
  const auto origin = before.weights();
  const Worst worst = worst_of(tuned, baseline, &origin);
  INFO(worst.name << " " << worst.error);
  CHECK(worst.error <= 1e-4);  // another order of additions
  CHECK(DataParallel(model, options).describe_plan(8).find(" us") != std::string::npos);
  options.deterministic = true;
  CHECK(DataParallel(model, options).describe_plan(8).find(" us") == std::string::npos);
}

TEST_CASE("simulated GPUs: the last automatic bucket is at most 1 MiB, and buckets of a given size are not cut") {
  SimulatedGpus machine(2);
  const Model model = models::mlp({.hidden = {256, 1024, 2048}});  // parameters: 0.8, 1, 8 and 0.1 MiB
  DataParallelOptions options = on_gpus(2, 2);
  CHECK_THAT(DataParallel(model, options).describe_plan(8),
             Catch::Contains("from fc3.weight") && Catch::Contains("0.77 MiB  from fc1.weight"));
  options.bucket_bytes = 4 << 20;
  CHECK_THAT(DataParallel(model, options).describe_plan(8), Catch::Contains("1.77 MiB  from fc1.weight"));
}

TEST_CASE("simulated GPUs: the bucket size is measured once per set of devices and cached") {
  SimulatedGpus machine(3);
  const Model model = narrow_convnet();
  DataParallelOptions options = on_gpus(2, 2);
  const auto bucket_bytes = [&] { return DataParallel(model, options).options().bucket_bytes; };
  const std::size_t fixed = bucket_bytes();
  options.autotune = true;
  CHECK(bucket_bytes() == fixed);  // a single bucket in any case
  engine::test_modes().tune_small_networks = true;
  const std::size_t measured = bucket_bytes();
  Backend& backend = kernels::backend(DeviceKind::cuda);
  const std::string what = "bucket bytes, p2p, 2 ranks";
  CHECK(measured % (1 << 20) == 0);
  CHECK(backend.remembered(options.devices, what) == static_cast<double>(measured));
  backend.remember(options.devices, what, 3 << 20);
  CHECK(bucket_bytes() == 3 << 20);
  CHECK(!backend.remembered(on_gpus(3, 3).devices, what));
  backend.remember(options.devices, what, NAN);
  CHECK(!backend.remembered(options.devices, what));
  const auto initial = DataParallel(model, options).weights();
  options.reduce_dtype = DType::bf16;
  const std::string in_low = what + ", sums in bfloat16";
  CHECK(!backend.remembered(options.devices, in_low));
  CHECK(bit_equal(DataParallel(model, options).weights(), initial));  // tuning reuses the weights' memory
  CHECK(backend.remembered(options.devices, in_low) == static_cast<double>(bucket_bytes()));
  options.deterministic = true;
  CHECK(bucket_bytes() == fixed);
  engine::test_modes() = {};
}
