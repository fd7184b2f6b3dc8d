// Runs that start from a weights file.
#include <bit>
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

// The message with which such a run is refused; empty if it starts.
std::string refusal_with(const TrainerOptions& options) try {
  start_with(options);
  return "";
} catch (const Error& error) {
  return error.what();
}

// `weights` with other types: float64, bfloat16 of the same values, and float32 counters.
NamedTensors of_other_types(const NamedTensors& weights) {
  NamedTensors out;
  for (const auto& [name, tensor] : weights) {
    if (tensor.shape().rank() == 4) {
      Tensor low(tensor.shape(), DType::bf16);
      for (std::int64_t i = 0; i < tensor.numel(); ++i)
        std::memcpy(static_cast<char*>(low.raw()) + 2 * i, reinterpret_cast<const char*>(tensor.data<float>() + i) + 2,
                    2);
      out.emplace_back(name, low);
    } else {
      out.emplace_back(name, tensor.to(tensor.dtype() == DType::i64 ? DType::f32 : DType::f64));
    }
  }
  return out;
}

NamedTensors cut_to_bfloat16(NamedTensors weights) {
  for (auto& [name, tensor] : weights) {
    if (tensor.shape().rank() != 4) continue;
    for (float& value : tensor.span<float>())
      value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & ~0xffffu);
  }
  return weights;
}

TEST_CASE("weights as wrappers and other types leave them are loaded, and one notice says what was changed") {
  const TemporaryFolder temp;
  const NamedTensors weights = cut_to_bfloat16(other_weights());
  NamedTensors given;
  for (const auto& [name, tensor] : of_other_types(weights)) given.emplace_back("module._orig_mod." + name, tensor);
  write_safetensors(temp / "w.safetensors", given);
  TrainerOptions options = tiny_options();
  options.init = temp / "w.safetensors";
  const Started started = start_with(options);
  CHECK(weights_sha256(started.weights) == weights_sha256(weights));
  for (const char* part : {"8 of 8 tensors loaded", "'module._orig_mod.' stripped from names",
                           "converted from bfloat16 to float32 ('conv.weight')", "converted from float64 to float32",
                           "converted from float32 to int64 ('bn.num_batches_tracked')"})
    CHECK_THAT(started.said, Catch::Contains(part));
  NamedTensors old;  // as before PyTorch 0.4.1
  for (const auto& one : weights)
    if (!one.first.ends_with("num_batches_tracked")) old.push_back(one);
  write_safetensors(temp / "w.safetensors", old);
  CHECK(weights_sha256(start_with(options).weights) == weights_sha256(weights));
  write_safetensors(temp / "w.safetensors", weights);
  CHECK_THAT(start_with(options).said, !Catch::Contains("loaded"));
}

TEST_CASE("first weights replace drawn ones in a new run, but not those of a file or of a resume") {
  const TemporaryFolder temp;
  const NamedTensors drawn = start_with(tiny_options()).weights, other = other_weights();
  REQUIRE(drawn[0].first == "conv.weight");
  int calls = 0;
  TrainerOptions options = tiny_options(temp / "run");
  options.epochs = 1;
  options.first_weights = [&] {
    ++calls;
    return NamedTensors{other[0]};
  };
  NamedTensors expected = drawn;
  expected[0] = other[0];
  CHECK(weights_sha256(start_with(options).weights) == weights_sha256(expected));
  CHECK(calls == 1);

  options.output_dir = temp / "new";
  dp::test::run_until(options, 2);
  CHECK(calls == 2);
  options.resume = "auto";
  dp::test::tiny_run(options);
  CHECK(calls == 2);

  options.resume.clear();
  options.output_dir.clear();
  write_safetensors(temp / "w.safetensors", other);
  options.init = temp / "w.safetensors";
  CHECK(weights_sha256(start_with(options).weights) == weights_sha256(other));
  CHECK(calls == 2);
  options.init.clear();
  options.first_weights = [&] { return NamedTensors{{"conv.weight", Tensor(Shape{3, 3})}}; };
  CHECK_THAT(refusal_with(options), Catch::Contains("conv.weight"));
}

// Initial weights that are refused, and what following the advice in the refusal gives.
TEST_CASE("each advice for weights that do not fit is true when it is followed") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options();
  const auto refusal = [&](const NamedTensors& weights) {
    write_safetensors(temp / "w.safetensors", weights);
    options.init = temp / "w.safetensors";
    options.init_partial = false;
    return refusal_with(options);
  };
  const auto advised = [&](const NamedTensors& weights, const std::string& loads) {
    CHECK_THAT(refusal(weights), Catch::Contains("--init-partial loads " + loads));
    options.init_partial = true;
    const std::string said = start_with(options).said;
    CHECK_THAT(said, Catch::Contains(loads.substr(0, loads.find(" tensors") + 8) + " loaded from"));
    CHECK_THAT(said, Catch::Contains("not loaded: "));
  };
  NamedTensors changed = other_weights();
  changed[0].second = Tensor(Shape{3, 3});  // the convolution
  advised(changed, "7 of 8 tensors, 92.9 % of the values");
  changed = other_weights();
  changed.pop_back();
  advised(changed, "7 of 8 tensors, ");
  changed = other_weights();
  changed.emplace_back("n_averaged", Tensor(Shape{}, DType::i64));
  advised(changed, "8 of 8 tensors, 100.0 % of the values");
  changed = {other_weights().front()};
  CHECK_THAT(refusal(changed),
             Catch::Contains("; give weights of this model with --init; --init-partial loads 1 of 8"));

  const auto not_advised = [&](const NamedTensors& weights, const std::string& text) {
    const std::string refused = refusal(weights);
    CHECK_THAT(refused, Catch::Contains(text + "; give weights of this model with --init"));
    CHECK_THAT(refused, !Catch::Contains("--init-partial"));
    options.init_partial = true;
    CHECK(refusal_with(options) == refused);
  };
  NamedTensors small;  // biases, statistics and the counter
  for (const auto& one : other_weights())
    if (one.second.shape().rank() < 2) small.push_back(one);
  not_advised(small, "6 of 8 tensors fit, but no weight of a layer");
  not_advised({{"x", Tensor(Shape{1})}}, "no tensor fits");
}

TEST_CASE("a folder and an optimizer's state are no weights, and the advice names the file") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp / "run");
  options.epochs = 1;
  const RunSummary ended = dp::test::tiny_run(options);
  const std::string last = temp / "run/checkpoints/last", file = last + "/model.safetensors";
  options = tiny_options();
  for (const std::string& folder : {temp / "run", last}) {
    options.init = folder;
    expect_error(ErrorCode::data, {"is a folder; give the weights in it: --init " + file},
                 [&] { start_with(options); });
  }
  options.init = last + "/optimizer.safetensors";
  options.init_partial = true;
  expect_error(ErrorCode::data, {options.init, "it holds the state of an optimizer, no weights"},
               [&] { start_with(options); });
  options.init = file, options.init_partial = false;
  CHECK(weights_sha256(start_with(options).weights) == ended.weights_sha256);
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
