// state.json: its text, its required and optional fields, and the limits of each.
#include "engine/checkpoint/checkpoint.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/files_support.h"
#include "support/catch.h"

using namespace dp::test;
using nlohmann::json;

namespace {

dp::TrainState full_state() {
  return {.model = "m",
          .dataset = "d",
          .step = 5,
          .epoch = 2,
          .batch_in_epoch = 3,
          .seed = ~std::uint64_t{0},
          .global_batch = 64,
          .best_top1 = 12.5,
          .config = "{\"lr\": 0.1}",
          .loss_scale = dp::LossScale{8, 4294967295u},
          .skipped = 1,
          .since_best = 4,
          .data = dp::DataIdentity{{"a", "b"}, {3, 4}, {1, 0}, "f", "g"}};
}

dp::TrainState parsed_state(const std::string& text) {
  dp::MemorySource source("s", std::as_bytes(std::span(text)));
  return dp::read_train_state(source);
}

std::string state_refusal(const std::string& text) {
  const Outcome outcome = outcome_of([&] { parsed_state(text); });
  CHECK(outcome.code == (outcome.text.empty() ? 0 : 3));
  return outcome.text;
}

// The full state with another value of one field.
std::string with(const std::string& key, const json& value) {
  json state = json::parse(dp::to_json(full_state()));
  state[key] = value;
  return state.dump();
}

}  // namespace

TEST_CASE("a training state has the documented text and is read back") {
  const std::string text = R"({
  "model": "m",
  "dataset": "d",
  "step": 5,
  "skipped": 1,
  "epoch": 2,
  "batch_in_epoch": 3,
  "seed": 18446744073709551615,
  "global_batch": 64,
  "best_top1": 12.5,
  "since_best": 4,
  "config": "{\"lr\": 0.1}",
  "loss_scale": 8.0,
  "loss_scale_steps": 4294967295,
  "data": {
    "classes": [
      "a",
      "b"
    ],
    "train_counts": [
      3,
      4
    ],
    "test_counts": [
      1,
      0
    ],
    "train_fingerprint": "f",
    "test_fingerprint": "g"
  }
}
)";
  CHECK(dp::to_json(full_state()) == text);
  const dp::TrainState state = parsed_state(text);
  CHECK((state.model == "m" && state.dataset == "d" && state.step == 5 && state.skipped == 1 && state.epoch == 2));
  CHECK((state.batch_in_epoch == 3 && state.seed == ~std::uint64_t{0} && state.global_batch == 64));
  CHECK((state.best_top1 == 12.5 && state.since_best == 4 && state.config == "{\"lr\": 0.1}"));
  REQUIRE(state.loss_scale.has_value());
  CHECK((state.loss_scale->scale == 8 && state.loss_scale->good_steps == 4294967295u));
  CHECK(state.data == full_state().data);
  dp::TrainState plain = full_state();
  plain.loss_scale.reset(), plain.best_top1 = std::numeric_limits<double>::infinity();
  CHECK(dp::to_json(plain).find("loss_scale") == std::string::npos);
  CHECK(parsed_state(dp::to_json(plain)).best_top1 == -1);
  CHECK_FALSE(parsed_state(dp::to_json(plain)).loss_scale.has_value());
}

TEST_CASE("only the fields that later versions added are optional in a state") {
  const json whole = json::parse(dp::to_json(full_state()));
  json older = whole;
  for (const char* added : {"skipped", "since_best", "loss_scale", "loss_scale_steps", "data"}) older.erase(added);
  const dp::TrainState state = parsed_state(older.dump());
  CHECK((state.step == 5 && state.skipped == 0 && state.since_best == 0 && !state.loss_scale.has_value()));
  CHECK_FALSE(state.data.has_value());
  for (const char* key : {"model", "dataset", "step", "epoch", "batch_in_epoch", "seed", "global_batch", "best_top1",
                          "config", "loss_scale_steps"}) {
    json fewer = whole;
    fewer.erase(key);
    CHECK(state_refusal(fewer.dump()) == std::string("s: has no '") + key + "'");
  }
}

TEST_CASE("values beyond the limits of a field are refused") {
  for (const std::string key : {"model", "dataset", "config"})
    CHECK(state_refusal(with(key, 7)) == "s: '" + key + "' is not a string");
  constexpr std::uint64_t kLimit = std::uint64_t{1} << 53;
  for (const std::string key : {"step", "skipped", "epoch", "batch_in_epoch", "global_batch", "since_best"}) {
    for (const json& wrong : {json(-1), json(1.5), json("1"), json(nullptr)})
      CHECK(state_refusal(with(key, wrong)) == "s: '" + key + "' is not a whole number of at least 0");
    CHECK(state_refusal(with(key, kLimit)) == "s: '" + key + "' is not below 2^53");
    CHECK(state_refusal(with(key, kLimit - 1)).empty());
    CHECK(state_refusal(with(key, 0)).empty());
  }
  CHECK(parsed_state(with("step", kLimit - 1)).step == static_cast<std::int64_t>(kLimit - 1));
  CHECK(state_refusal(with("seed", -1)) == "s: 'seed' is not a whole number of at least 0");
  CHECK(state_refusal(with("loss_scale_steps", 4294967296u)) == "s: 'loss_scale_steps' is not below 2^32");
  for (const double scale : {0.0, -2.0, 1e-40, 1e39})
    CHECK(state_refusal(with("loss_scale", scale)) == "s: 'loss_scale' is not a positive float32 number");
  CHECK(parsed_state(with("loss_scale", 0x1p-126)).loss_scale->scale == 0x1p-126f);
  CHECK(state_refusal(with("best_top1", "7")) == "s: 'best_top1' is not a number");
  CHECK(parsed_state(with("best_top1", 3)).best_top1 == 3);
  CHECK(parsed_state(with("config", "")).config.empty());
  CHECK(parsed_state(with("config", "{}")).config == "{}");
  CHECK(state_refusal(with("config", "[1]")) == "s: 'config': is not a JSON object");
  CHECK(state_refusal(with("config", "{")) == "s: 'config': is not valid JSON; it is damaged");
}

TEST_CASE("the data set in a state has lists of names and counts, and two fingerprints") {
  const auto with_data = [](const std::string& key, const json& value) {
    json state = json::parse(dp::to_json(full_state()));
    state["data"][key] = value;
    return state.dump();
  };
  CHECK(state_refusal(with("data", 7)) == "s: 'data': is not a JSON object");
  CHECK(state_refusal(with_data("classes", "a")) == "s: 'data': 'classes' is not a list");
  CHECK(state_refusal(with_data("classes", {"a", 7})) == "s: 'data': 'classes' has an entry that is not a string");
  CHECK(state_refusal(with_data("test_counts", {1, -1})) ==
        "s: 'data': 'test_counts' has an entry that is not a count below 2^53");
  CHECK(state_refusal(with_data("train_fingerprint", nullptr)) == "s: 'data': 'train_fingerprint' is not a string");
  CHECK(state_refusal(with_data("classes", json::array())).empty());
}

TEST_CASE("a state has room for 100,000 classes, but at most 524,288 values") {
  dp::TrainState large = full_state();
  large.data->classes.assign(100'000, "a name of forty letters for every class");
  large.data->train_counts.assign(100'000, 1300), large.data->test_counts.assign(100'000, 50);
  CHECK(parsed_state(dp::to_json(large)).data == large.data);
  CHECK(state_refusal(with("more", json(std::vector<int>(600'000)))) == "s: has more than 524,288 values");
}

TEST_CASE("a state has at most 16 MiB and no zero byte") {
  std::string text = dp::to_json(full_state());
  text.resize(16 << 20, ' ');
  CHECK(parsed_state(text).step == 5);
  CHECK(state_refusal(text + " ") == "s: has 16777217 bytes, but at most 16777216 are expected");
  text.back() = '\0';
  CHECK(state_refusal(text) == "s: contains zero bytes; it is damaged");
}
