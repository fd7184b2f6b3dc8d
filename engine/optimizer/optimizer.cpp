#include "engine/optimizer/optimizer.h"

#include <fmt/format.h>

#include "dp/error.h"

namespace dp {
namespace engine {
namespace {

using kernels::UpdateConstants;
using kernels::UpdateRule;

UpdateKind kind(const Sgd& sgd) { return {UpdateRule::sgd, sgd.momentum != 0}; }

UpdateKind kind(const AdamW&) { return {UpdateRule::adamw, true}; }

UpdateConstants constants(const Sgd& sgd) { return {.sgd = {sgd.momentum, sgd.nesterov}}; }
UpdateConstants constants(const AdamW& adamw) { return {.adamw = {adamw.beta1, adamw.beta2, adamw.eps}}; }

}  // namespace

UpdateKind kind_of(const Optimizer& optimizer) {
  return std::visit([](const auto& own) { return kind(own); }, optimizer);
}

UpdateConstants constants_of(const Optimizer& optimizer) {
  return std::visit([](const auto& own) { return constants(own); }, optimizer);
}

std::vector<std::string_view> slot_names(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::sgd: return {"momentum_buffer"};
    case UpdateRule::adamw: return {"exp_avg", "exp_avg_sq"};
  }
  return {};
}

UpdateRule rule_named(std::string_view name) {
  for (const UpdateRule rule : {UpdateRule::sgd, UpdateRule::adamw})
    if (name == kernels::name_of(rule)) return rule;
  throw Error(ErrorCode::data, fmt::format("there is no optimizer '{}'", name));
}

}  // namespace engine

std::string_view name_of(const Optimizer& optimizer) { return kernels::name_of(engine::kind_of(optimizer).rule); }

float& learning_rate(Optimizer& optimizer) {
  return std::visit([](auto& own) -> float& { return own.lr; }, optimizer);
}
float learning_rate(const Optimizer& optimizer) {
  return std::visit([](const auto& own) { return own.lr; }, optimizer);
}

}  // namespace dp
