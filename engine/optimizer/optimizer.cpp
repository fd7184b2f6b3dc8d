#include "engine/optimizer/optimizer.h"

#include <fmt/format.h>

#include <cmath>

#include "dp/error.h"

namespace dp {
namespace engine {
namespace {

using kernels::UpdateConstants;
using kernels::UpdateRule;

// A step checks its optimizer, and must not allocate: nothing is formatted unless a check fails.
[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::usage, why); }

void require_not_negative(float value, const char* what) {
  if (!std::isfinite(value) || value < 0)
    refuse(fmt::format("{} is {}; it must be finite and at least 0", what, value));
}

UpdateKind kind(const Sgd& sgd) { return {UpdateRule::sgd, sgd.momentum != 0}; }

UpdateKind kind(const AdamW&) { return {UpdateRule::adamw, true}; }

UpdateConstants constants(const Sgd& sgd) { return {.sgd = {sgd.momentum, sgd.nesterov}}; }
UpdateConstants constants(const AdamW& adamw) { return {.adamw = {adamw.beta1, adamw.beta2, adamw.eps}}; }

void check_own(const Sgd& sgd) {
  require_not_negative(sgd.momentum, "the momentum");
  if (sgd.momentum >= 1) refuse(fmt::format("the momentum is {}; it must be below 1", sgd.momentum));
  if (sgd.nesterov && sgd.momentum == 0) refuse("Nesterov momentum requires a momentum above 0");
}

void check_own(const AdamW& adamw) {
  for (const double beta : {adamw.beta1, adamw.beta2})
    if (!(beta >= 0 && beta < 1)) refuse(fmt::format("a beta of AdamW is {}; it must lie in [0, 1)", beta));
  if (!(std::isfinite(adamw.eps) && adamw.eps > 0))
    refuse(fmt::format("eps of AdamW is {}; it must be above 0", adamw.eps));
}

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

void check(const Optimizer& optimizer) {
  std::visit(
      [](const auto& own) {
        require_not_negative(own.lr, "the learning rate");
        require_not_negative(own.weight_decay, "the weight decay");
        check_own(own);
      },
      optimizer);
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
