// Runs that start from a weights file.
#include <cstring>

#include "support/catch.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

namespace {

using namespace dp;
using dp::test::expect_error;
using dp::test::TemporaryFolder;
using dp::test::tiny_options;

// The initial weights of a run, and its messages.
struct Started {
  NamedTensors weights;
  std::string said;
};
Started start_with(const TrainerOptions& options) {
  Started started;
  std::atomic<int> stop{2};  // stops before the first step
  TrainerOptions stopping = options;
  stopping.stop = &stop;
  TrainerCallbacks callbacks;
  callbacks.on_message = [&](const std::string& text) { started.said += text; };
  Trainer trainer(dp::test::tiny_model(), dp::test::tiny_digits(), stopping);
  trainer.run(callbacks);
  started.weights = trainer.net().weights();
  return started;
}

NamedTensors other_weights() {
  DataParallelOptions options = tiny_options().parallel;
  options.seed = 1234;
  return DataParallel(dp::test::tiny_model(), options).weights();
}

TEST_CASE("weights saved from DataParallel lose their module prefix") {
  const TemporaryFolder temp;
  NamedTensors prefixed;
  for (const auto& [name, tensor] : other_weights()) prefixed.emplace_back("module." + name, tensor);
  write_safetensors(temp / "w.safetensors", prefixed);
  TrainerOptions options = tiny_options();
  options.init = temp / "w.safetensors";
  CHECK(weights_sha256(start_with(options).weights) == weights_sha256(other_weights()));
}

TEST_CASE("other shapes are rejected, or keep their initial values with --init-partial") {
  const TemporaryFolder temp;
  NamedTensors changed = other_weights();
  changed[0].second = Tensor(Shape{3, 3});
  write_safetensors(temp / "w.safetensors", changed);
  TrainerOptions options = tiny_options();
  options.init = temp / "w.safetensors";
  expect_error(ErrorCode::data, {temp / "w.safetensors", changed[0].first, "(3, 3)", "--init-partial"},
               [&] { start_with(options); });
  options.init_partial = true;
  const Started started = start_with(options);
  CHECK(started.said.find(changed[0].first) != std::string::npos);
  const NamedTensors initial = start_with(tiny_options()).weights;
  for (std::size_t i = 0; i < initial.size(); ++i) {
    const Tensor &wanted = (i == 0 ? initial : changed)[i].second, &got = started.weights[i].second;
    REQUIRE(wanted.bytes() == got.bytes());
    CHECK(std::memcmp(wanted.raw(), got.raw(), got.bytes()) == 0);
  }
}

TEST_CASE("weights with NaN are rejected") {
  const TemporaryFolder temp;
  NamedTensors weights = other_weights();
  weights[1].second.data<float>()[0] = NAN;
  write_safetensors(temp / "w.safetensors", weights);
  TrainerOptions options = tiny_options();
  options.init = temp / "w.safetensors";
  expect_error(ErrorCode::data, {temp / "w.safetensors", weights[1].first, "NaN"}, [&] { start_with(options); });
}

TEST_CASE("resume auto takes precedence over initial weights") {
  const TemporaryFolder temp;
  write_safetensors(temp / "w.safetensors", other_weights());
  TrainerOptions options = tiny_options(temp / "run");
  options.init = temp / "w.safetensors";
  options.resume = "auto";
  CHECK(weights_sha256(start_with(options).weights) == weights_sha256(other_weights()));
  std::filesystem::remove(temp / "w.safetensors");
  CHECK(weights_sha256(start_with(options).weights) == weights_sha256(other_weights()));
}

}  // namespace
