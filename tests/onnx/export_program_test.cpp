// dp_train export.
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "apps/run_program.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

void make_run(const TemporaryFolder& temp, const Words& more) {
  const Outcome run = run_dp_train(
      Words{"--cpu", "1", "-b", "16", "--max-steps", "2", "--output-dir", "run", "--quiet"} + more, temp.path());
  INFO(run.err);
  REQUIRE(run.code == 0);
}

onnx::ModelProto exported(const TemporaryFolder& temp, const Words& words) {
  const Outcome outcome = run_dp_train(Words{"export"} + words + Words{"-o", "net.onnx"}, temp.path());
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.out == "net.onnx\n");
  CHECK(outcome.err.empty());
  onnx::ModelProto model;
  REQUIRE(model.ParseFromString(read_text(temp / "net.onnx")));
  fs::remove(temp / "net.onnx");
  return model;
}

}  // namespace

TEST_CASE("dp_train export writes a run, a checkpoint and its weights alike") {
  const TemporaryFolder temp;
  make_run(temp, {"--dataset", "digits", "--model", "mlp"});
  const onnx::ModelProto of_run = exported(temp, {"run"});
  CHECK(of_run.graph().node_size() == 4);  // flatten, fc1, relu, fc2
  CHECK(of_run.graph().input(0).type().tensor_type().shape().dim(0).dim_value() == 1);
  std::map<std::string, std::string> metadata;
  for (const auto& entry : of_run.metadata_props()) metadata[entry.key()] = entry.value();
  CHECK(metadata["dp.input_size"] == "[1,28,28]");
  CHECK(metadata["dp.classes"].empty());  // the drawn digits have no names
  CHECK_THAT(metadata["dp.preprocessing"], Catch::Contains("\"mean\":["));
  for (const char* path : {"run/checkpoints/best", "run/checkpoints/best/model.safetensors"})
    CHECK(exported(temp, {path}).SerializeAsString() == of_run.SerializeAsString());
}

TEST_CASE("dp_train export folds batch normalisations and names the batch") {
  const TemporaryFolder temp;
  make_run(temp, {"--dataset", "synthetic", "--input", "3,32,32", "--images", "32", "--model", "resnet18"});
  const auto count = [](const onnx::ModelProto& model, const std::string& op) {
    return std::ranges::count_if(model.graph().node(), [&](const auto& node) { return node.op_type() == op; });
  };
  const onnx::ModelProto plain = exported(temp, {"run"});
  CHECK(count(plain, "Conv") == 20);
  CHECK(count(plain, "BatchNormalization") == 20);
  const onnx::ModelProto folded = exported(temp, {"run", "--fold-bn", "--dynamic-batch"});
  CHECK(count(folded, "Conv") == 20);
  CHECK(count(folded, "BatchNormalization") == 0);
  CHECK(folded.graph().input(0).type().tensor_type().shape().dim(0).dim_param() == "batch");
}

TEST_CASE("dp_train export names what is missing") {
  const TemporaryFolder temp;
  make_run(temp, {"--dataset", "synthetic", "--images", "32", "--model", "mlp"});
  fs::create_directory(temp / "empty");
  check_bad_input({{"export", "run"}, 2, {"export requires --output, the ONNX file"}}, temp.path());
  check_bad_input({{"export", "-o", "net.onnx"}, 2, {"export requires the folder of a run"}}, temp.path());
  check_bad_input({{"export", "away", "-o", "net.onnx"}, 3, {"away"}}, temp.path());
  check_bad_input({{"export", "empty", "-o", "net.onnx"}, 3, {"empty"}}, temp.path());
  check_bad_input({{"export", "run", "-o", "away/net.onnx"}, 7, {"away/", "net.onnx"}}, temp.path());
  Program without({"export", "run", "-o", "net.onnx"}, temp.path(), {"DP_PLUGIN_PATH=" + (temp / "empty")});
  const Outcome outcome = without.wait();
  CHECK(outcome.code == 2);
  CHECK_THAT(outcome.err, Catch::Contains("no ONNX plugin was found") && Catch::Contains("libonnx-dev"));
  CHECK_FALSE(fs::exists(temp / "net.onnx"));
}
