// What a run saves is enough to use its network.
#include <filesystem>

#include "support/catch.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

using namespace dp::test;

namespace {

std::string model_file(const std::string& run, const char* checkpoint = "last") {
  return run + "/checkpoints/" + checkpoint + "/model.safetensors";
}

// Writes the weights of a run again, with changes.
std::string changed_file(const TemporaryFolder& folder,
                         const std::function<void(dp::NamedTensors&, std::map<std::string, std::string>&)>& change) {
  std::map<std::string, std::string> metadata;
  dp::NamedTensors weights = dp::read_safetensors(model_file(folder.path()), &metadata);
  change(weights, metadata);
  const std::string file = folder.path() + "/changed.safetensors";
  dp::write_safetensors(file, weights, metadata);
  return file;
}

std::string refusal(const std::string& path, dp::WeightsOf which = dp::WeightsOf::automatic) {
  try {
    dp::read_trained_model(path, which);
  } catch (const dp::Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a network is read from a run, a checkpoint or a file, and computes what the trainer's computes") {
  const TemporaryFolder folder;
  dp::TrainerOptions options = tiny_options(folder.path());
  options.epochs = 1;
  dp::Trainer trainer(tiny_model(), tiny_digits(), options);
  trainer.run();
  const dp::NamedTensors trained = trainer.net().weights();
  for (const std::string& path : {folder.path(), folder.path() + "/checkpoints/last", model_file(folder.path())}) {
    INFO(path);
    const dp::TrainedModel network = dp::read_trained_model(path);
    CHECK(dp::to_json(network.model) == dp::to_json(tiny_model()));
    CHECK(dp::weights_sha256(network.weights) == dp::weights_sha256(trained));
    CHECK(network.classes == tiny_digits().test->class_names());
    REQUIRE(network.preprocessing);
    CHECK(network.preprocessing->normalization.mean == tiny_digits().test->normalization().mean);
    CHECK(network.preprocessing->normalization.std == tiny_digits().test->normalization().std);
    CHECK_FALSE(network.preprocessing->resizing);
  }
  const dp::Checkpoint again = dp::load_checkpoint(folder.path() + "/checkpoints/last");
  REQUIRE(again.model);
  CHECK(dp::to_json(*again.model) == dp::to_json(tiny_model()));
  CHECK(again.preprocessing.has_value());
}

TEST_CASE("of a run with a moving average the average is read, or the weights of the last step") {
  const TemporaryFolder folder;
  dp::TrainerOptions options = tiny_options(folder.path());
  options.epochs = 1;
  options.parallel.ema_decay = 0.5f;
  dp::Trainer trainer(tiny_model(), tiny_digits(), options);
  trainer.run();
  const auto read = [&](dp::WeightsOf which) {
    return dp::weights_sha256(dp::read_trained_model(folder.path() + "/checkpoints/last", which).weights);
  };
  const std::string average = dp::weights_sha256(trainer.net().average_weights());
  CHECK(read(dp::WeightsOf::automatic) == average);
  CHECK(read(dp::WeightsOf::average) == average);
  CHECK(read(dp::WeightsOf::last_step) == dp::weights_sha256(trainer.net().weights()));
}

TEST_CASE("weights that do not fit the network they describe are refused") {
  const TemporaryFolder folder;
  dp::TrainerOptions options = tiny_options(folder.path());
  options.epochs = 1;
  tiny_run(options);
  CHECK(refusal(changed_file(folder, [](auto&, auto& metadata) {
          metadata.erase("dp.model");
        })).find("does not describe its network") != std::string::npos);
  CHECK(refusal(changed_file(folder, [](auto& weights, auto&) { weights.pop_back(); })).find("lacks the tensor") !=
        std::string::npos);
  CHECK(refusal(changed_file(folder, [](auto& weights, auto&) {
          weights.front().second = dp::Tensor(weights.back().second);
        })).find("has the shape") != std::string::npos);
  CHECK(refusal(changed_file(folder, [](auto& weights, auto&) {
          weights.emplace_back("extra", weights.front().second);
        })).find("'extra' that the network it describes does not have") != std::string::npos);
  CHECK(refusal(changed_file(folder, [](auto&, auto& metadata) {
          metadata["dp.classes"] = R"(["a"])";
        })).find("names 1 classes, but the network has 10 outputs") != std::string::npos);
  CHECK(refusal(changed_file(folder, [](auto&, auto& metadata) {
          metadata["dp.preprocessing"] = R"({"mean":[0,0],"std":[1,1]})";
        })).find("another number of channels") != std::string::npos);
  CHECK(refusal(changed_file(folder, [](auto&, auto& metadata) {
          metadata["dp.preprocessing"] = R"({"mean":[0],"std":[0]})";
        })).find("positive deviation") != std::string::npos);
  CHECK(refusal(changed_file(folder, [](auto&, auto& metadata) {
          metadata["dp.preprocessing"] = R"({"mean":[0],"std":[1],"interpolation":"cubic","crop_pct":1})";
        })).find("'interpolation' has an unknown value") != std::string::npos);
  CHECK(refusal(folder.path(), dp::WeightsOf::average).find("no moving average") != std::string::npos);
  CHECK(refusal(folder.path() + "/nothing") != "");
  std::filesystem::create_directory(folder.path() + "/empty");
  CHECK(refusal(folder.path() + "/empty").find("neither a run folder") != std::string::npos);
}
