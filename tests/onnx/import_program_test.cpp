// dp_train --model net.onnx.
#include <algorithm>
#include <filesystem>

#include "apps/run_program.h"
#include "dp/dp.h"
#include "dp/onnx.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using namespace dp;
using namespace dp::test;

const Words kShort{"--cpu", "1", "-b", "16", "--dataset", "digits", "--quiet"};

// A network of 28x28 images and 10 classes.
NamedTensors write_network(const TemporaryFolder& temp) {
  const Model model = models::mlp({.hidden = {6}});
  DataParallelOptions options;
  options.devices = cpus(1);
  const NamedTensors weights = DataParallel(model, options).weights();
  write_onnx(temp / "net.onnx", {model, weights});
  return weights;
}

Outcome train(const TemporaryFolder& temp, const Words& words) {
  const Outcome outcome = run_dp_train(kShort + words, temp.path());
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  return outcome;
}

}  // namespace

TEST_CASE("dp_train begins with the weights of an ONNX file") {
  const TemporaryFolder temp;
  NamedTensors weights = write_network(temp);
  train(temp, {"--model", "net.onnx", "--lr", "0", "--max-steps", "1", "--output-dir", "run"});
  NamedTensors trained = read_safetensors(temp / "run/checkpoints/last/model.safetensors");
  const auto by_name = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::ranges::sort(trained, by_name), std::ranges::sort(weights, by_name);
  REQUIRE(trained.size() == weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    INFO(weights[i].first);
    CHECK(trained[i].first == weights[i].first);
    const bool equal = std::ranges::equal(trained[i].second.span<float>(), weights[i].second.span<float>());
    CHECK(equal);
  }
}

TEST_CASE("a run from an ONNX file is resumed and exported without the file") {
  const TemporaryFolder temp;
  write_network(temp);
  const Words steps{"--model", "net.onnx", "--lr", "0.05", "--lr-scheduler", "constant", "--max-steps"};
  train(temp, steps + Words{"4", "--output-dir", "whole"});
  train(temp, steps + Words{"2", "--output-dir", "run"});
  fs::remove(temp / "net.onnx");
  train(temp, {"--resume", "run", "--max-steps", "4"});
  const bool equal = read_text(temp / "run/checkpoints/last/model.safetensors") ==
                     read_text(temp / "whole/checkpoints/last/model.safetensors");
  CHECK(equal);
  CHECK(run_dp_train({"export", "run", "-o", "again.onnx"}, temp.path()).code == 0);
  CHECK(read_onnx(temp / "again.onnx").network.model.parameters().size() == 4);
  const Outcome ranks =
      run_dp_train({"--resume", "run", "--max-steps", "6", "--cpu", "2", "--engine", "ddp", "--quiet"}, temp.path());
  INFO(ranks.err);
  CHECK(ranks.code == 0);
}

TEST_CASE("the run folder of an ONNX file has the name of the file") {
  const TemporaryFolder temp;
  write_network(temp);
  train(temp, {"--model", temp / "net.onnx", "--max-steps", "1"});
  bool found = false;
  for (const auto& run : fs::directory_iterator(temp / "runs")) found = found || run.path().string().ends_with("_net");
  CHECK(found);
}

TEST_CASE("dp_train says why an ONNX file does not fit the data") {
  const TemporaryFolder temp;
  write_network(temp);
  write_text(temp / "bad.onnx", "no network");
  const Words synthetic{"--cpu", "1", "--dataset", "synthetic", "--images", "32", "--model"};
  check_bad_input({synthetic + Words{"net.onnx", "--classes", "7"},
                   2,
                   {"net.onnx", "the data set has 7 classes", "torch.nn.Linear"}},
                  temp.path());
  check_bad_input({synthetic + Words{"net.onnx", "--input", "3,28,28"}, 2, {"net.onnx", "(1, 28, 28)", "(3, 28, 28)"}},
                  temp.path());
  check_bad_input({synthetic + Words{"bad.onnx"}, 3, {"bad.onnx", "is not an ONNX file"}}, temp.path());
  check_bad_input({synthetic + Words{"away.onnx"}, 3, {"away.onnx"}}, temp.path());
}
