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

using kernels::kOptimizerNames;
using kernels::kOptimizerSlots;

template <typename... Own>
std::vector<Optimizer> all_of(const std::variant<Own...>*) {
  return {Own{}...};
}

}  // namespace

std::vector<Optimizer> every_optimizer() { return all_of(static_cast<const Optimizer*>(nullptr)); }

UpdateKind kind_of(const OptimizerState& state) {
  const auto at = std::ranges::find(kOptimizerNames, std::string_view(state.optimizer));
  if (at == kOptimizerNames.end())
    throw Error(ErrorCode::data, fmt::format("there is no optimizer '{}'", state.optimizer));
  const auto place = static_cast<std::size_t>(at - kOptimizerNames.begin());
  unsigned used = 0, bit = 1;
  for (const OptimizerSlot& slot : kOptimizerSlots[place]) {
    const auto is_named = [&](const auto& one) { return one.first.starts_with(std::string(slot.name) + "."); };
    if (!slot.optional || std::ranges::any_of(state.tensors, is_named)) used |= bit;
    bit <<= 1;
  }
  return {static_cast<std::uint8_t>(place), static_cast<std::uint8_t>(used)};
}

std::vector<std::string_view> slot_names(const UpdateKind& kind) {
  std::vector<std::string_view> names;
  unsigned bit = 1;
  for (const OptimizerSlot& slot : kOptimizerSlots[kind.optimizer]) {
    if (kind.slots & bit) names.emplace_back(slot.name);
    bit <<= 1;
  }
  return names;
}

}  // namespace engine

std::string_view name_of(const Optimizer& optimizer) {
  return std::visit([](const auto& own) { return own.kName; }, optimizer);
}

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

using Row = OptionTable<Optimizer>::Row;

std::string joined(const std::vector<std::string>& names, const char* before_last) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? before_last : ", ") + names[i];
  return text;
}

std::vector<std::string> optimizer_names() {
  return {kernels::kOptimizerNames.begin(), kernels::kOptimizerNames.end()};
}

// The names of the optimizers whose weight decay is an L2 penalty.
std::vector<std::string> with_penalty() {
  std::vector<std::string> names;
  for (const Optimizer& each : every_optimizer())
    std::visit(
        [&]<typename Own>(const Own&) {
          if (!Own::kDecoupledDecay && kernels::kTensorWork<Own> == TensorWork::none) names.emplace_back(Own::kName);
        },
        each);
  return names;
}

void choose(Optimizer& optimizer, const std::string& name) {
  for (const Optimizer& other : every_optimizer())
    if (name == name_of(other) && other.index() != optimizer.index()) optimizer = other;
}

// Where an optimizer has the member that `member` returns a reference to; null: it has none.
template <typename T, typename Member>
auto where(Member member) {
  return [member](auto& optimizer) {
    using Place = std::conditional_t<std::is_const_v<std::remove_reference_t<decltype(optimizer)>>, const T, T>*;
    return std::visit(
        [&](auto& own) -> Place {
          if constexpr (requires { member(own); })
            return &member(own);
          else
            return nullptr;
        },
        optimizer);
  };
}

// Adds to a row which optimizers have the option, and its default in each. SGD's are those of the model's recipe.
void describe(Row& row) {
  std::vector<std::string> names;
  std::vector<std::pair<std::string, std::vector<std::string>>> defaults;  // each default, and who has it
  for (const Optimizer& each : every_optimizer()) {
    const OptionValue value = row.get(each);
    if (std::holds_alternative<std::monostate>(value)) continue;
    names.emplace_back(name_of(each));
    const std::string text = std::holds_alternative<Sgd>(each) ? "by model" : to_text(value);
    const auto same = std::ranges::find(defaults, text, &decltype(defaults)::value_type::first);
    if (same == defaults.end())
      defaults.emplace_back(text, std::vector{names.back()});
    else
      same->second.push_back(names.back());
  }
  if (names.size() < std::variant_size_v<Optimizer>) {
    row.help = joined(names, ", ") + ": " + row.help;
    row.needs("--optimizer " + joined(names, " or "), "optimizer");
  } else {
    row.goes_with("optimizer");
  }
  std::string shown;
  for (const auto& [text, who] : defaults)
    shown += (shown.empty() ? "" : "; ") + (defaults.size() > 1 ? joined(who, ", ") + ": " : "") + text;
  if (shown != "off") row.shown(shown);  // a flag that is off has no text
}

OptionTable<Optimizer> make_optimizer_options() {
  OptionTable<Optimizer> table;
  table.group("Training");
  table.add(
      "optimizer,--opt", accepts::one_of(optimizer_names()), joined(optimizer_names(), " or "),
      [](const Optimizer& optimizer) { return std::string(name_of(optimizer)); },
      [](Optimizer& optimizer, const OptionValue& name) {
        choose(optimizer, std::get<std::string>(name));
        return true;
      });
  const auto add = [&](const char* name, const Accepts& accepts, auto place, const std::string& help) {
    describe(table.add(name, accepts, place, help));
  };
  add("lr,--learning-rate", kRate, where<float>([](auto& own) -> auto& { return own.lr; }), "learning rate");
  add("momentum", kMomentum, where<float>([](auto& own) -> decltype((own.momentum)) { return own.momentum; }),
      "momentum");
  add("nesterov,!--no-nesterov", accepts::flag(),
      where<bool>([](auto& own) -> decltype((own.nesterov)) { return own.nesterov; }), "Nesterov momentum");
  describe(table.add(
      "opt-betas", accepts::two(kBeta), "beta1 and beta2, the weights of the past in its averages",
      [](const Optimizer& optimizer) {
        return std::visit(
            [](const auto& own) {
              if constexpr (requires { own.beta1; })
                return OptionValue{std::vector{own.beta1, own.beta2}};
              else
                return OptionValue{};
            },
            optimizer);
      },
      [](Optimizer& optimizer, const OptionValue& betas) {
        return std::visit(
            [&](auto& own) {
              if constexpr (requires { own.beta1; }) {
                own.beta1 = std::get<std::vector<double>>(betas)[0];
                own.beta2 = std::get<std::vector<double>>(betas)[1];
                return true;
              } else {
                return false;
              }
            },
            optimizer);
      }));
  add("opt-eps", kEps, where<float>([](auto& own) -> decltype((own.eps)) { return own.eps; }),
      "added to the denominator");
  add("opt-alpha", kBeta, where<double>([](auto& own) -> decltype((own.alpha)) { return own.alpha; }),
      "weight of the past in its averages");
  add("opt-centered", accepts::flag(), where<bool>([](auto& own) -> decltype((own.centered)) { return own.centered; }),
      "divide by the deviation from the mean gradient");
  add("opt-match-rms,!--no-opt-match-rms", accepts::flag(),
      where<bool>([](auto& own) -> decltype((own.match_rms)) { return own.match_rms; }),
      "on: multiply the rate of a matrix by 0.2*sqrt(max(rows, columns)), which fits AdamW's rates; off: by "
      "sqrt(max(1, rows/columns))");
  add("weight-decay,--wd", kRate, where<float>([](auto& own) -> auto& { return own.weight_decay; }),
      "weight decay; an L2 penalty with " + joined(with_penalty(), " and "));
  return table;
}

OptionTable<Schedule> make_schedule_options() {
  const std::string choice = "lr-scheduler";
  OptionTable<Schedule> table;
  table.group("Training");
  table
      .add(choice + ",--sched",
           accepts::one_of(
               {"constant", "step", "multistep", "cosine", "exponential", "polynomial", "onecycle", "plateau"}),
           &Schedule::kind, "constant, step, multistep, cosine, exponential, polynomial, onecycle, plateau")
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
            const bool drops = schedule.kind == ScheduleKind::step || schedule.kind == ScheduleKind::multistep ||
                               schedule.kind == ScheduleKind::exponential || schedule.kind == ScheduleKind::plateau;
            return drops ? &schedule.gamma : nullptr;
          },
          "step, multistep, plateau: factor of each drop; exponential: of each epoch")
      .needs("--lr-scheduler step, multistep, exponential or plateau", choice)
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
          [](auto& schedule) {
            const bool falls = schedule.kind == ScheduleKind::cosine || schedule.kind == ScheduleKind::polynomial ||
                               schedule.kind == ScheduleKind::plateau;
            return falls ? &schedule.min_lr : nullptr;
          },
          "cosine, polynomial: the learning rate at the end; plateau: the lowest one")
      .needs("--lr-scheduler cosine, polynomial or plateau", choice)
      .shown("0");
  table
      .add(
          "lr-patience,--patience-epochs", accepts::whole(0, 1'000'000'000),
          [](auto& schedule) { return schedule.kind == ScheduleKind::plateau ? &schedule.patience : nullptr; },
          "plateau: drop after more than N evaluations without a lower loss")
      .needs("--lr-scheduler plateau", choice)
      .shown("10");
  table
      .add(
          "lr-power", accepts::number(1e-6, 1e3),
          [](auto& schedule) { return schedule.kind == ScheduleKind::polynomial ? &schedule.power : nullptr; },
          "polynomial: exponent of the part of the epochs that is left")
      .needs("--lr-scheduler polynomial", choice)
      .shown("1");
  const auto add_to_onecycle = [&](const char* name, const Accepts& accepts, double Schedule::*member, const char* what,
                                   const char* shown) {
    table
        .add(
            name, accepts,
            [member](auto& schedule) {
              return schedule.kind == ScheduleKind::onecycle ? &(schedule.*member) : nullptr;
            },
            what)
        .needs("--lr-scheduler onecycle", choice)
        .shown(shown);
  };
  add_to_onecycle("lr-pct-start", accepts::number(0, 1), &Schedule::pct_start,
                  "onecycle: part of the steps in which the learning rate rises", "0.3");
  add_to_onecycle("lr-div-factor", accepts::number(1e-6, 1e12), &Schedule::div_factor,
                  "onecycle: the highest learning rate divided by the first", "25");
  add_to_onecycle("lr-final-div-factor", accepts::number(1e-6, 1e12), &Schedule::final_div_factor,
                  "onecycle: the first learning rate divided by the last", "10000");
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
        if constexpr (requires { own.momentum; }) require("momentum", kMomentum, double{own.momentum});
        if constexpr (requires { own.nesterov; })
          if (own.nesterov && own.momentum == 0)
            throw Error(ErrorCode::usage,
                        "--nesterov requires --momentum above 0; raise the momentum, or use --no-nesterov");
        if constexpr (requires { own.beta1; })
          for (const double beta : {own.beta1, own.beta2}) require("opt-betas", kBeta, beta);
        if constexpr (requires { own.eps; }) require("opt-eps", kEps, double{own.eps});
        if constexpr (requires { own.alpha; }) require("opt-alpha", kBeta, own.alpha);
      },
      optimizer);
}

}  // namespace dp::engine

namespace dp {

// Learning rate schedules.

namespace {

// From `first` to `last` along half a period of a cosine; `done`: 0 to 1.
double half_cosine(double first, double last, double done) {
  return last + 0.5 * (first - last) * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace

double Schedule::factor(double epoch, double epochs_per_step) const {
  // The small offset ensures that a milestone at a step takes effect at that step, despite rounding of steps / steps
  // per epoch.
  const double now = epoch + 1e-6 * epochs_per_step;
  const double warmup = warmup_epochs > 0 ? std::min(1.0, (epoch + epochs_per_step) / warmup_epochs) : 1.0;
  switch (kind) {
    case ScheduleKind::constant:
    case ScheduleKind::plateau: return warmup;
    case ScheduleKind::step: return warmup * std::pow(gamma, std::floor(now / step_size));
    case ScheduleKind::multistep: {
      const auto passed = std::count_if(milestones.begin(), milestones.end(), [&](double at) { return at <= now; });
      return warmup * std::pow(gamma, static_cast<double>(passed));
    }
    case ScheduleKind::cosine:
    case ScheduleKind::polynomial: {
      if (warmup < 1) return warmup;
      const double length = total_epochs - warmup_epochs;
      if (length <= 0) return warmup;  // the warm-up fills the run
      const double done = std::clamp((epoch - warmup_epochs) / length, 0.0, 1.0);
      return kind == ScheduleKind::cosine ? half_cosine(1, 0, done) : std::pow(1 - done, power);
    }
    case ScheduleKind::exponential: return warmup * std::pow(gamma, epoch);
    case ScheduleKind::onecycle: {
      // In steps. The last step is number total - 1.
      const double step = epoch / epochs_per_step, total = total_epochs / epochs_per_step;
      const double top = pct_start * total - 1, first = 1 / div_factor;
      if (top > 0 && step < top + 1e-6) return half_cosine(first, 1, std::min(1.0, step / top));
      const double fall = total - 1 - top;
      return half_cosine(1, first / final_div_factor, fall > 0 ? std::clamp((step - top) / fall, 0.0, 1.0) : 1);
    }
  }
  return 1;
}

double Schedule::rate(double lr, double epoch, double epochs_per_step) const {
  const bool warms_up = epoch + epochs_per_step < warmup_epochs;
  const bool falls = kind == ScheduleKind::cosine || kind == ScheduleKind::polynomial;
  const double end = falls && !warms_up ? min_lr : 0;
  return end + (lr - end) * factor(epoch, epochs_per_step);
}

void Plateau::evaluated(const Schedule& schedule, double lr, double loss) {
  constexpr double kLower = 1 - 1e-4, kLeastChange = 1e-8;  // PyTorch's threshold and eps
  if (std::isfinite(loss) && (!best || loss < *best * kLower)) {
    best = loss;
    bad = 0;
  } else {
    ++bad;
  }
  if (bad <= schedule.patience) return;
  bad = 0;
  const double rate = lr * factor, reduced = std::max(rate * schedule.gamma, schedule.min_lr);
  if (rate - reduced > kLeastChange) factor = reduced / lr;
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
  const std::vector<bool> frozen = frozen_parameters(groups, model);
  if (!frozen.empty() && std::ranges::find(frozen, false) == frozen.end())
    throw Error(ErrorCode::usage, "all parameters of the model are frozen; at least one must be trained");
}

std::vector<bool> frozen_parameters(const std::vector<ParameterGroup>& groups, const Model& model) {
  std::vector<bool> frozen;
  for (const ParameterSpec& spec : model.parameters()) {
    const auto group = std::ranges::find_if(groups, [&](const ParameterGroup& one) { return matches(one, spec); });
    frozen.push_back(group != groups.end() && group->frozen);
  }
  if (std::ranges::find(frozen, true) == frozen.end()) frozen.clear();
  return frozen;
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
