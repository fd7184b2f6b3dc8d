#include "engine/train/run_config.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/base/text.h"
#include "engine/train/option_names.h"

namespace dp {
namespace {

std::string toml_value(const nlohmann::ordered_json& value) {
  if (value.is_string()) return toml_string(value.get<std::string>());
  if (value.is_array()) {
    std::string out;
    for (const auto& item : value) out += (out.empty() ? "" : ", ") + toml_value(item);
    return "[" + out + "]";
  }
  if (value.is_number_float() && !std::isfinite(value.get<double>())) return "nan";
  return value.dump();
}

double shortest(float value) { return std::stod(fmt::format("{}", value)); }  // 0.02, not 0.019999999552965164

void add(nlohmann::ordered_json& json, const Sgd& sgd) {
  json["momentum"] = shortest(sgd.momentum);
  json["nesterov"] = sgd.nesterov;
}

void add(nlohmann::ordered_json& json, const AdamW& adamw) {
  json["opt-betas"] = {adamw.beta1, adamw.beta2};
  json["opt-eps"] = shortest(adamw.eps);
}

std::string to_text(const ParameterGroup& group) {
  std::string text = group.pattern + (group.vectors ? " of one dimension" : "") + ":";
  if (group.frozen) return text + " frozen";
  text += fmt::format(" lr x {}", group.lr_factor);
  return group.weight_decay ? text + fmt::format(", weight decay {}", *group.weight_decay) : text;
}

}  // namespace

nlohmann::ordered_json run_config(const std::string& model, const TrainerOptions& options) {
  const DataParallelOptions& parallel = options.parallel;
  nlohmann::ordered_json json;
  json["model"] = model;
  json["dataset"] = options.dataset_name;
  for (const Device& device : parallel.devices) json["devices"].push_back(to_string(device));
  json["batch-size"] = options.batch_size;
  json["epochs"] = options.epochs;
  if (options.max_steps > 0) json["max-steps"] = options.max_steps;
  json["optimizer"] = name_of(options.optimizer);
  std::visit(
      [&](const auto& optimizer) {
        json["lr"] = shortest(optimizer.lr);
        add(json, optimizer);
        json["weight-decay"] = shortest(optimizer.weight_decay);
      },
      options.optimizer);
  for (const ParameterGroup& group : parallel.parameter_groups) json["parameter-groups"].push_back(to_text(group));
  json["lr-scheduler"] = to_string(options.schedule.kind);
  const ScheduleKind kind = options.schedule.kind;
  if (kind == ScheduleKind::step) json["lr-step-size"] = options.schedule.step_size;
  if (kind == ScheduleKind::multistep) json["lr-milestones"] = options.schedule.milestones;
  if (kind == ScheduleKind::step || kind == ScheduleKind::multistep) json["lr-gamma"] = options.schedule.gamma;
  json["lr-warmup-epochs"] = options.schedule.warmup_epochs;
  json["reduce"] = name_of(parallel.reduce);
  if (parallel.reduce_dtype != DType::f32) json["reduce-dtype"] = to_string(parallel.reduce_dtype);
  json["comm"] = name_of(parallel.comm);
  json["loss"] = name_of(parallel.loss);
  json["bn"] = name_of(parallel.batch_norm);
  if (parallel.amp != Amp::off) json["amp"] = true, json["amp-dtype"] = name_of(parallel.amp);
  if (parallel.logical_shards > 0) json["logical-shards"] = parallel.logical_shards;
  json["split"] = name_of(parallel.split);
  json["bucket-mb"] = static_cast<double>(parallel.bucket_bytes) / 1048576.0;
  json["threads-per-replica"] = parallel.threads_per_replica;
  json["grad-accum-steps"] = parallel.grad_accum_steps;
  if (parallel.ema_decay) json["model-ema-decay"] = *parallel.ema_decay;
  if (parallel.clip_grad_norm) json["clip-grad-norm"] = *parallel.clip_grad_norm;
  json["label-smoothing"] = shortest(parallel.label_smoothing);
  json["on-nonfinite"] = name_of(parallel.on_nonfinite);
  json["seed"] = parallel.seed;
  json["deterministic"] = parallel.deterministic;
  json["fast-conv"] = parallel.fast_convolutions;
  json["tf32"] = parallel.tf32;
  json["no-autotune"] = !parallel.autotune;
  json["graphs"] = name_of(parallel.graphs);
  json["no-dropout"] = !parallel.dropout;
  json["no-shuffle"] = !options.shuffle;
  json["no-augment"] = !options.augment;
  json["drop-last"] = options.drop_last;
  json["workers"] = options.workers;
  json["images-on"] = options.images_on == ImagesOn::device ? "device" : "host";
  json["init"] = options.init;
  json["init-partial"] = options.init_partial;
  return json;
}

std::string to_toml(const nlohmann::ordered_json& flat) {
  std::string out;
  for (const auto& [key, value] : flat.items()) out += key + " = " + toml_value(value) + "\n";
  return out;
}

}  // namespace dp
