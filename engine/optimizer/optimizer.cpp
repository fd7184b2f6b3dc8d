// Names, state tensors, options and learning-rate schedules of the optimizers.
#include "dp/optimizer.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "dp/error.h"
#include "engine/optimizer/optimizer.h"

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

namespace dp::engine {
namespace {

const Accepts kRate = accepts::number(0, 1e6), kMomentum = accepts::below(0, 1), kBeta = accepts::below(0, 1),
              kEps = accepts::positive(1);

// A member of one kind of optimizer.
template <typename Kind, typename T>
auto member(T Kind::*field) {
  return [field](auto& optimizer) {
    auto* const own = std::get_if<Kind>(&optimizer);
    return own ? &(own->*field) : nullptr;
  };
}

void choose(Optimizer& optimizer, const std::string& name) {
  for (const Optimizer& other : {Optimizer(Sgd{}), Optimizer(AdamW{})})
    if (name == name_of(other) && other.index() != optimizer.index()) optimizer = other;
}

OptionTable<Optimizer> make_optimizer_options() {
  const std::string sgd = "--optimizer sgd", adamw = "--optimizer adamw", choice = "optimizer";
  OptionTable<Optimizer> table;
  table.group("Training");
  table.add(
      "optimizer,--opt", accepts::one_of({"sgd", "adamw"}), "sgd or adamw",
      [](const Optimizer& optimizer) { return std::string(name_of(optimizer)); },
      [](Optimizer& optimizer, const OptionValue& name) {
        choose(optimizer, std::get<std::string>(name));
        return true;
      });
  table
      .add(
          "lr,--learning-rate", kRate,
          [](auto& optimizer) { return std::visit([](auto& own) { return &own.lr; }, optimizer); }, "learning rate")
      .goes_with(choice)
      .shown("sgd: by model; adamw: " + to_text(OptionValue{option_fields::shortest(AdamW{}.lr)}));
  table.add("momentum", kMomentum, member(&Sgd::momentum), "sgd: momentum").needs(sgd, choice).shown("by model");
  table.add("nesterov,!--no-nesterov", accepts::flag(), member(&Sgd::nesterov), "sgd: Nesterov momentum")
      .needs(sgd, choice)
      .shown("by model");
  table
      .add(
          "opt-betas", accepts::two(kBeta), "adamw: decay of the averages of the gradient and of its square",
          [](const Optimizer& optimizer) {
            const auto* const own = std::get_if<AdamW>(&optimizer);
            return own ? OptionValue{std::vector{own->beta1, own->beta2}} : OptionValue{};
          },
          [](Optimizer& optimizer, const OptionValue& betas) {
            auto* const own = std::get_if<AdamW>(&optimizer);
            if (own) own->beta1 = std::get<std::vector<double>>(betas)[0];
            if (own) own->beta2 = std::get<std::vector<double>>(betas)[1];
            return own != nullptr;
          })
      .needs(adamw, choice)
      .shown(to_text(OptionValue{std::vector{AdamW{}.beta1, AdamW{}.beta2}}));
  table.add("opt-eps", kEps, member(&AdamW::eps), "adamw: added to the denominator")
      .needs(adamw, choice)
      .shown(to_text(OptionValue{option_fields::shortest(AdamW{}.eps)}));
  table
      .add(
          "weight-decay,--wd", kRate,
          [](auto& optimizer) { return std::visit([](auto& own) { return &own.weight_decay; }, optimizer); },
          "weight decay; an L2 penalty with sgd")
      .goes_with(choice)
      .shown("sgd: by model; adamw: " + to_text(OptionValue{option_fields::shortest(AdamW{}.weight_decay)}));
  return table;
}

OptionTable<Schedule> make_schedule_options() {
  const std::string choice = "lr-scheduler";
  OptionTable<Schedule> table;
  table.group("Training");
  table
      .add(choice + ",--sched", accepts::one_of({"constant", "step", "multistep", "cosine"}), &Schedule::kind,
           "constant, step, multistep, cosine")
      .shown("by model");
  table
      .add(
          "lr-step-size", accepts::number(1e-6, 1e9),
          [](auto& schedule) { return schedule.kind == ScheduleKind::step ? &schedule.step_size : nullptr; },
          "step: epochs between drops")
      .needs("--lr-scheduler step", choice)
      .shown(to_text(OptionValue{Schedule{}.step_size}));
  table
      .add(
          "lr-gamma,--gamma", accepts::number(0, 1e6),
          [](auto& schedule) {
            const bool drops = schedule.kind == ScheduleKind::step || schedule.kind == ScheduleKind::multistep;
            return drops ? &schedule.gamma : nullptr;
          },
          "step, multistep: factor of each drop")
      .needs("--lr-scheduler step or multistep", choice)
      .shown(to_text(OptionValue{Schedule{}.gamma}));
  table
      .add(
          "lr-milestones", accepts::list(accepts::number(0, 1e9)),
          [](auto& schedule) { return schedule.kind == ScheduleKind::multistep ? &schedule.milestones : nullptr; },
          "multistep: epochs of the drops, ascending")
      .needs("--lr-scheduler multistep", choice)
      .shown("50 % and 75 % of the epochs");
  table
      .add(
          "lr-min,--min-lr", kRate,
          [](auto& schedule) { return schedule.kind == ScheduleKind::cosine ? &schedule.min_lr : nullptr; },
          "cosine: the learning rate at the end")
      .needs("--lr-scheduler cosine", choice)
      .shown("0");
  table.add("lr-warmup-epochs,--warmup-epochs", accepts::number(0, 1e9), &Schedule::warmup_epochs,
            "epochs of linear warm-up");
  return table;
}

void require(const char* option, const Accepts& accepts, double value) {
  if (is_accepted(accepts, value)) return;
  OptionText text;
  text.name = option, text.accepts = accepts;
  refuse_value(text, value);
}

void check_own(const Sgd& sgd) {
  require("momentum", kMomentum, double{sgd.momentum});
  if (sgd.nesterov && sgd.momentum == 0)
    throw Error(ErrorCode::usage, "--nesterov requires --momentum above 0; raise the momentum, or use --no-nesterov");
}

void check_own(const AdamW& adamw) {
  for (const double beta : {adamw.beta1, adamw.beta2}) require("opt-betas", kBeta, beta);
  require("opt-eps", kEps, double{adamw.eps});
}

}  // namespace

const OptionTable<Optimizer>& optimizer_options() {
  static const OptionTable<Optimizer> table = make_optimizer_options();
  return table;
}

const OptionTable<Schedule>& schedule_options() {
  static const OptionTable<Schedule> table = make_schedule_options();
  return table;
}

void check(const Optimizer& optimizer) {
  std::visit(
      [](const auto& own) {
        require("lr", kRate, double{own.lr});
        require("weight-decay", kRate, double{own.weight_decay});
        check_own(own);
      },
      optimizer);
}

}  // namespace dp::engine

namespace dp {

// Learning rate schedules.

double Schedule::factor(double epoch, double epochs_per_step) const {
  // The small offset ensures that a milestone at a step takes effect at that step, despite rounding of steps / steps
  // per epoch.
  const double now = epoch + 1e-6 * epochs_per_step;
  const double warmup = warmup_epochs > 0 ? std::min(1.0, (epoch + epochs_per_step) / warmup_epochs) : 1.0;
  switch (kind) {
    case ScheduleKind::constant: return warmup;
    case ScheduleKind::step: return warmup * std::pow(gamma, std::floor(now / step_size));
    case ScheduleKind::multistep: {
      const auto passed = std::count_if(milestones.begin(), milestones.end(), [&](double at) { return at <= now; });
      return warmup * std::pow(gamma, static_cast<double>(passed));
    }
    case ScheduleKind::cosine: {
      if (warmup < 1) return warmup;
      const double length = total_epochs - warmup_epochs;
      if (length <= 0) return warmup;  // the warm-up fills the run
      const double done = std::clamp((epoch - warmup_epochs) / length, 0.0, 1.0);
      return 0.5 * (1 + std::cos(std::numbers::pi * done));
    }
  }
  return 1;
}

double Schedule::rate(double lr, double epoch, double epochs_per_step) const {
  const bool warms_up = epoch + epochs_per_step < warmup_epochs;
  const double end = kind == ScheduleKind::cosine && !warms_up ? min_lr : 0;
  return end + (lr - end) * factor(epoch, epochs_per_step);
}

namespace engine {

using kernels::kGroupElements;

namespace {

void check(const ParameterGroup& group) {
  const auto usable = [](float value) { return std::isfinite(value) && value >= 0; };
  if (!usable(group.lr_factor) || !usable(group.weight_decay.value_or(0)))
    throw Error(ErrorCode::usage,
                fmt::format("parameter group '{}': the factor of the learning rate and the weight decay must be finite "
                            "and not negative",
                            group.pattern));
}

template <typename Parameter>
bool matches(const ParameterGroup& group, const Parameter& parameter) {
  return (!group.vectors || parameter.shape.rank() == 1) &&
         ::fnmatch(group.pattern.c_str(), parameter.name.c_str(), 0) == 0;
}

}  // namespace

void check_groups(const std::vector<ParameterGroup>& groups, const Model& model) {
  if (groups.size() >= kernels::kMaxGroups)
    throw Error(ErrorCode::usage,
                fmt::format("{} parameter groups; at most {} are possible", groups.size(), kernels::kMaxGroups - 1));
  for (const ParameterGroup& group : groups) {
    check(group);
    if (std::ranges::none_of(model.parameters(), [&](const ParameterSpec& spec) { return matches(group, spec); }))
      throw Error(ErrorCode::usage, fmt::format("no parameter of the model matches '{}'{}; the names are those of a "
                                                "state dict, such as '{}'",
                                                group.pattern, group.vectors ? " and has one dimension" : "",
                                                model.parameters().front().name));
  }
}

ParameterGroups::ParameterGroups(std::vector<ParameterGroup> groups, const ParameterTable& table)
    : groups_(std::move(groups)) {
  if (groups_.empty()) return;
  map_.resize(static_cast<std::size_t>((table.size() + kGroupElements - 1) / kGroupElements));
  for (const ParameterEntry& entry : table.entries()) {
    const auto found = std::find_if(groups_.begin(), groups_.end(),
                                    [&](const ParameterGroup& group) { return matches(group, entry); });
    if (found == groups_.end()) continue;
    const auto begin = map_.begin() + entry.offset / kGroupElements;
    std::fill(begin, begin + (entry.count + kGroupElements - 1) / kGroupElements,
              static_cast<std::uint8_t>(found - groups_.begin() + 1));
  }
}

std::vector<kernels::Range> ParameterGroups::frozen_in(kernels::Range range) const {
  std::vector<kernels::Range> ranges;
  for (std::int64_t at = range.begin; at < range.end && !map_.empty();) {
    const std::int64_t next = std::min(range.end, (at / kGroupElements + 1) * kGroupElements);
    const std::uint8_t group = map_[static_cast<std::size_t>(at / kGroupElements)];
    if (group != 0 && groups_[group - 1u].frozen) {
      if (ranges.empty() || ranges.back().end != at) ranges.push_back({at, at});
      ranges.back().end = next;
    }
    at = next;
  }
  return ranges;
}

void ParameterGroups::set(kernels::UpdateInputs& inputs, const Optimizer& optimizer) const {
  std::visit(
      [&](const auto& own) {
        inputs.groups[0] = {own.lr, own.weight_decay};
        for (std::size_t i = 0; i < groups_.size(); ++i) {
          const ParameterGroup& group = groups_[i];
          if (!group.frozen)  // a frozen group has rate and decay 0
            inputs.groups[i + 1] = {own.lr * group.lr_factor, group.weight_decay.value_or(own.weight_decay)};
        }
      },
      optimizer);
}

}  // namespace engine

}  // namespace dp
