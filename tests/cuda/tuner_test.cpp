// Choices by timing: what is kept, what is tried, and that what is chosen computes the same. Times are made up; those of the
// simulation say nothing.
#include "kernels/cuda/tuner.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "cuda/narrow_nets.h"
#include "cuda/simulated_gpus.h"
#include "engine/test_modes.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/trial.h"
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

class FailingOp final : public CudaOp {
 protected:
  void enqueue(cudaStream_t, std::span<void* const>, void*) override { throw Error(ErrorCode::device, "it fails"); }
};

// Whose times are given.
class FakeTimes final : public Tuner {
 public:
  FakeTimes(const std::string& folder, const std::string& machine, std::function<double(std::size_t)> time)
      : Tuner(folder, machine), time_(std::move(time)) {}
  std::string choose(const Conv2dForward& desc = small_convolution()) {
    auto pinned = make(desc, CudaOpOptions{});
    const std::vector<Way> others = ways_beside(desc, *pinned, {});
    return as_op(Tuner::choose(desc, std::move(pinned), {others, {}, {}}))->implementation();
  }
  int tries = 0;

 private:
  std::vector<double> try_all(const OpDesc&, std::span<CudaOp* const> ops) override {
    ++tries;
    std::vector<double> times;
    for (std::size_t i = 0; i < ops.size(); ++i) times.push_back(time_(i));
    return times;
  }
  std::function<double(std::size_t)> time_;
};

double third_is_best(std::size_t i) { return i == 2 ? 12.34 : 20.0; }

std::string pinned_name() { return make(small_convolution(), CudaOpOptions{})->implementation(); }
std::string name_of_alternative(std::size_t i) {
  const auto pinned = make(small_convolution(), CudaOpOptions{});
  return make_with(small_convolution(), pinned->alternatives().at(i - 1))->implementation();
}

}  // namespace

TEST_CASE("tuning cache: what is kept is found again, by the same machine alone") {
  const TemporaryFolder folder;
  TuningCache cache(folder / "new", "a GPU");
  CHECK(!cache.find("a problem"));
  cache.keep("a problem", {"first", 3});
  cache.keep("another\tone", {"second\n", 2.5});
  cache.keep("a problem", {"third", 1.25});
  for (TuningCache again(folder / "new", "a GPU"); const TuningCache* const seen : {&cache, &again}) {
    REQUIRE(seen->find("a problem"));
    CHECK(seen->find("a problem")->candidate == "third");
    CHECK(seen->find("a problem")->microseconds == 1.25);
    CHECK(seen->find("another\tone")->microseconds == 2.5);
  }
  const TuningCache other(folder / "new", "another GPU");
  CHECK(!other.find("a problem"));
  std::filesystem::copy_file(cache.file(), other.file());  // as if the names' hashes were equal
  CHECK(!TuningCache(folder / "new", "another GPU").find("a problem"));
}

TEST_CASE("tuning cache: a file of anything is read as what of it is right") {
  const TemporaryFolder folder;
  std::string text, file;
  {
    TuningCache cache(folder.path(), "a GPU");
    for (int i = 0; i < 5; ++i) cache.keep("problem " + std::to_string(i), {"candidate", 1.0 * i});
    text = read_text(file = cache.file());
  }
  const auto found = [&] {
    int count = 0;
    const TuningCache cache(folder.path(), "a GPU");
    for (int i = 0; i < 5; ++i) count += cache.find("problem " + std::to_string(i)).has_value();
    return count;
  };
  CHECK(found() == 5);
  for (std::size_t length = 0; length < text.size(); length += 7) {  // torn
    write_text(file, text.substr(0, length));
    const bool whole = text[length] == '\n';  // but for its end
    CHECK(found() == std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length), '\n') + whole);
  }
  for (std::size_t at = 0; at < text.size(); at += 5) {  // a wrong byte spoils its line, a wrong newline two
    std::string wrong = text;
    wrong[at] = wrong[at] == 'x' ? 'y' : 'x';
    write_text(file, wrong);
    CHECK(found() >= 3);
    CHECK(found() < 5);
  }
  std::string zeros(1000, '\0');
  write_text(file, zeros.append("\n").append(text));
  CHECK(found() == 5);
  write_text(file, std::string(5 << 20, 'x'));
  CHECK(found() == 0);
  TuningCache(folder.path(), "a GPU").keep("problem 3", {"candidate", 1});
  CHECK(found() == 1);  // what is too long is begun anew
}

TEST_CASE("tuning cache: what is no file stops nobody") {
  const TemporaryFolder folder;
  TuningCache cache(folder.path(), "a GPU");
  REQUIRE(::mkfifo(cache.file().c_str(), 0600) == 0);  // which nobody reads
  cache.keep("problem", {"candidate", 1});
  CHECK(cache.find("problem"));
  CHECK(!TuningCache(folder.path(), "a GPU").find("problem"));
}

TEST_CASE("tuning cache: where nothing can be written it is in memory alone") {
  TuningCache nowhere("", "a GPU"), forbidden("/proc/nowhere", "a GPU");
  for (TuningCache* const cache : {&nowhere, &forbidden}) {
    cache->keep("a problem", {"one", 1});
    CHECK(cache->find("a problem"));
  }
  CHECK(nowhere.file().empty());
}

TEST_CASE("tuning cache: processes that write at once do not harm each other") {
  const TemporaryFolder folder;
  std::vector<pid_t> writers;
  for (int process = 0; process < 4; ++process) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      TuningCache cache(folder.path(), "a GPU");
      for (int i = 0; i < 200; ++i)
        cache.keep("problem " + std::to_string(process) + " " + std::to_string(i), {"candidate", 1});
      ::_exit(0);
    }
    writers.push_back(child);
  }
  for (const pid_t writer : writers) ::waitpid(writer, nullptr, 0);
  const TuningCache cache(folder.path(), "a GPU");
  for (int process = 0; process < 4; ++process)
    for (int i = 0; i < 200; ++i) REQUIRE(cache.find("problem " + std::to_string(process) + " " + std::to_string(i)));
}

TEST_CASE("tuner: the fastest is taken, tried once, and remembered on disk") {
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

TEST_CASE("tuner: code that was compiled for an older device has no tensor cores of a newer one") {
  SimulatedGpus machine(1);
  CHECK(options_of_device(0).compute_capability == 90);
  simt::simulation().compiled_for = 75;
  CHECK(options_of_device(0).compute_capability == 75);
  simt::simulation().compiled_for = 90;
  simt::simulation().compute_capability = 86;
  CHECK(options_of_device(0).compute_capability == 86);
}

TEST_CASE("tuner: a log has what every way took, and which were out") {
  SimulatedGpus machine(1);
  const TemporaryFolder folder;
  const std::string file = folder / "new/log";
  ::setenv("DP_TUNING_LOG", file.c_str(), 1);
  FakeTimes("", "a GPU", [](std::size_t i) { return i == 1 ? kUnfit : 3.0 + static_cast<double>(i); }).choose();
  ::unsetenv("DP_TUNING_LOG");
  FakeTimes("", "a GPU", third_is_best).choose();  // not in it
  const std::string problem = problem_of(small_convolution(), *make(small_convolution(), CudaOpOptions{})) + "\t";
  const std::string text = read_text(file);
  CHECK(text.starts_with(problem + pinned_name() + "\t3.000\n" + problem + name_of_alternative(1) + "\t-\n" + problem +
                         name_of_alternative(2) + "\t5.000\n"));
  const auto ways = make(small_convolution(), CudaOpOptions{})->alternatives().size() + 1;
  CHECK(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) == ways);
}

TEST_CASE("tuner: a remembered way that there is no more is tried again, and what fits nowhere is pinned") {
  SimulatedGpus machine(1);
  const TemporaryFolder folder;
  const Conv2dForward desc = small_convolution();
  TuningCache(folder.path(), "a GPU").keep(problem_of(desc, *make(desc, CudaOpOptions{})), {"own:gemm of old", 1});
  FakeTimes tuner(folder.path(), "a GPU", third_is_best);
  tuner.choose();
  CHECK(tuner.tries == 1);
  FakeTimes none("", "a GPU", [](std::size_t) { return kUnfit; });
  CHECK(none.choose() == pinned_name());
}

TEST_CASE("tuner: alternatives differ from each other and from what is pinned") {
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

TEST_CASE("tuner: every way that is tried computes the same, another result is never taken") {
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
          auto pinned = make(d, CudaOpOptions{});
          const std::vector<Way> others = ways_beside(desc, *pinned, {});
          for (const Way& way : others) CHECK(way.make()->implementation() == way.name);
          const auto op = as_op(tuner.choose(desc, std::move(pinned), {others, {}, {}}));
          INFO(op->implementation());
          CHECK(op->implementation().ends_with(" us"));  // one was tried and agreed
        },
        desc);
  // Something else, something that fails when it is made, when it runs, and nothing at all.
  const Conv2dForward desc = small_convolution(), other = small_convolution(/*relu=*/true);
  const GemmChoice some = make(desc, CudaOpOptions{})->alternatives().front();
  const std::vector<Way> wrong = {
      {"another", [&] { return make_with(other, some); }},
      {"refused", []() -> std::unique_ptr<CudaOp> { throw Error(ErrorCode::device, "no"); }},
      {"failing", [] { return std::make_unique<FailingOp>(); }},
      {"nothing", [] { return nullptr; }}};
  Tuner tuner("", "a GPU");
  CHECK(as_op(tuner.choose(desc, make(desc, CudaOpOptions{}), {wrong, {}, {}}))
            ->implementation()
            .starts_with(pinned_name() + ", "));
}

TEST_CASE("tuner: replicas train with the same choices, deterministic runs without any") {
  SimulatedGpus machine(2);
  const Model model = narrow_convnet();
  DataParallelOptions options = on_gpus(2, 2);
  const Batch batch = random_batch(model, 8);
  const auto pinned = step(model, options, batch);
  DataParallel before(model, options);
  options.autotune = true;
  const auto tuned = step(model, options, batch);
  const auto origin = before.weights();
  const Worst worst = worst_of(tuned, pinned, &origin);
  INFO(worst.name << " " << worst.error);
  CHECK(worst.error <= 1e-4);  // sums in another order
  CHECK(DataParallel(model, options).describe_plan(8).find(" us") != std::string::npos);
  options.deterministic = true;
  CHECK(DataParallel(model, options).describe_plan(8).find(" us") == std::string::npos);
}

TEST_CASE(
    "simulated GPUs: the last of automatic buckets is 1 MiB at most, those of a size that was asked for are not cut") {
  SimulatedGpus machine(2);
  const Model model = models::mlp({.hidden = {256, 1024, 2048}});  // 0.8, 1, 8 and 0.1 MiB
  DataParallelOptions options = on_gpus(2, 2);
  CHECK_THAT(DataParallel(model, options).describe_plan(8),
             Catch::Contains("from fc3.weight") && Catch::Contains("0.77 MiB  from fc1.weight"));
  options.bucket_bytes = 4 << 20;
  CHECK_THAT(DataParallel(model, options).describe_plan(8), Catch::Contains("1.77 MiB  from fc1.weight"));
}

TEST_CASE("simulated GPUs: the size of buckets is measured once for a set of devices, and remembered") {
  SimulatedGpus machine(3);
  const Model model = narrow_convnet();
  DataParallelOptions options = on_gpus(2, 2);
  const auto bucket_bytes = [&] { return DataParallel(model, options).options().bucket_bytes; };
  const std::size_t fixed = bucket_bytes();
  options.autotune = true;
  CHECK(bucket_bytes() == fixed);  // one bucket anyway
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
  CHECK(bit_equal(DataParallel(model, options).weights(), initial));  // what is timed lies where they will be
  CHECK(backend.remembered(options.devices, in_low) == static_cast<double>(bucket_bytes()));
  options.deterministic = true;
  CHECK(bucket_bytes() == fixed);
  engine::test_modes() = {};
}
