#include "engine/checkpoint/train_state.h"

#include <cmath>
#include <cstdint>
#include <span>

#include "dp/error.h"
#include "engine/base/fault.h"
#include "engine/checkpoint/data_identity.h"
#include "engine/checkpoint/small_json.h"

namespace dp {
namespace {

constexpr std::uint64_t kLongestState = 16 << 20;              // names of classes take up to 4 MiB
constexpr std::uint64_t kCountLimit = std::uint64_t{1} << 53;  // exact in every JSON reader; far from overflow

class Fields {
 public:
  explicit Fields(ByteSource& source) : path_(source.name()), json_(read_small_json(source, kLongestState)) {}

  std::string text(const char* key) const {
    const auto& value = at(key);
    if (!value.is_string()) wrong(key, "a string");
    return value.get<std::string>();
  }
  std::uint64_t natural(const char* key) const {
    const auto& value = at(key);
    if (!value.is_number_unsigned()) wrong(key, "a whole number of at least 0");
    return value.get<std::uint64_t>();
  }
  std::int64_t count(const char* key) const {
    const std::uint64_t value = natural(key);
    if (value >= kCountLimit) wrong(key, "below 2^53");
    return static_cast<std::int64_t>(value);
  }
  std::uint32_t small(const char* key) const {
    const std::uint64_t value = natural(key);
    if (value > UINT32_MAX) wrong(key, "below 2^32");
    return static_cast<std::uint32_t>(value);
  }
  float scale(const char* key) const {
    const auto value = static_cast<float>(number(key));
    if (!std::isnormal(value) || value < 0) wrong(key, "a positive float32 number");
    return value;
  }
  std::string json_text(const char* key) const {
    std::string value = text(key);
    if (!value.empty()) parse_small_json(value, path_ + ": '" + key + "'");
    return value;
  }
  DataIdentity data(const char* key) const { return read_data_identity(at(key), path_ + ": '" + key + "'"); }
  bool has(const char* key) const { return json_.contains(key); }
  double number(const char* key) const {
    const auto& value = at(key);
    if (!value.is_number()) wrong(key, "a number");
    return value.get<double>();
  }

 private:
  const nlohmann::json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) throw_data(path_, std::string("has no '") + key + "'");
    return *found;
  }
  [[noreturn]] void wrong(const char* key, const char* due) const {
    throw_data(path_, std::string("'") + key + "' is not " + due);
  }

  std::string path_;
  nlohmann::json json_;
};

}  // namespace

std::string to_json(const TrainState& state) {
  nlohmann::ordered_json json = {
      {"model", state.model},
      {"dataset", state.dataset},
      {"step", state.step},
      {"skipped", state.skipped},
      {"epoch", state.epoch},
      {"batch_in_epoch", state.batch_in_epoch},
      {"seed", state.seed},
      {"global_batch", state.global_batch},
      {"best_top1", std::isfinite(state.best_top1) ? state.best_top1 : -1.0},
      {"since_best", state.since_best},
      {"config", state.config},
  };
  if (state.loss_scale) {
    json["loss_scale"] = static_cast<double>(state.loss_scale->scale);
    json["loss_scale_steps"] = state.loss_scale->good_steps;
  }
  if (state.data) json["data"] = to_json(*state.data);
  const std::string text = json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  try {  // rejects a state that could not be read back
    MemorySource source("the training state", std::as_bytes(std::span(text)));
    read_train_state(source);
  } catch (const Error& error) {
    throw Error(ErrorCode::usage, error.what());
  }
  return text;
}

TrainState read_train_state(ByteSource& source) {
  const Fields fields(source);
  TrainState state;
  state.model = fields.text("model");
  state.dataset = fields.text("dataset");
  state.step = fields.count("step");
  if (fields.has("skipped")) state.skipped = fields.count("skipped");
  state.epoch = fields.count("epoch");
  state.batch_in_epoch = fields.count("batch_in_epoch");
  state.seed = fields.natural("seed");
  state.global_batch = fields.count("global_batch");
  state.best_top1 = fields.number("best_top1");
  if (fields.has("since_best")) state.since_best = fields.count("since_best");
  state.config = fields.json_text("config");
  if (fields.has("loss_scale"))
    state.loss_scale = LossScale{fields.scale("loss_scale"), fields.small("loss_scale_steps")};
  if (fields.has("data")) state.data = fields.data("data");
  return state;
}

}  // namespace dp
