// The options of optimizers and schedules: what applies to which kind, its limits, and what each kind needs.
#include "engine/optimizer/optimizer.h"

#include <cmath>

#include "dp/error.h"
#include "engine/optimizer/optimizer.h"
#include "support/catch.h"

namespace {

using namespace dp;
using engine::optimizer_options;
using engine::schedule_options;
using engine::slot_names;

std::string refusal(const Optimizer& optimizer) {
  try {
    engine::check(optimizer);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    return error.what();
  }
  return "accepted";
}

template <typename Options>
void set(const OptionTable<Options>& table, const char* name, Options& options, const OptionValue& value) {
  table.set(*table.find(name), options, value);
}

// The names and values of the options that apply, "name value".
template <typename Options>
std::vector<std::string> applying(const OptionTable<Options>& table, const Options& options) {
  std::vector<std::string> found;
  for (const auto& row : table.rows())
    if (const OptionValue value = row.get(options); !std::holds_alternative<std::monostate>(value))
      found.push_back(row.name + " " + to_text(value));
  return found;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("values beyond the limits of an optimizer's option are refused") {
  const std::string rate = "it must be a number from 0 to 1000000";
  const std::string share = "it must be a number from 0 to below 1";
  CHECK(refusal(Sgd{.lr = 0}) == "accepted");
  CHECK(refusal(Sgd{.lr = 1e6f, .momentum = 0.999f, .nesterov = true, .weight_decay = 1e6f}) == "accepted");
  CHECK(refusal(Sgd{.lr = -1}) == "--lr is -1; " + rate);
  CHECK(refusal(Sgd{.lr = NAN}) == "--lr is nan; " + rate);
  CHECK(refusal(Sgd{.lr = 2e6f}) == "--lr is 2000000; " + rate);
  CHECK(refusal(Sgd{.weight_decay = -0.5f}) == "--weight-decay is -0.5; " + rate);
  CHECK(refusal(Sgd{.momentum = 1}) == "--momentum is 1; " + share);
  CHECK(refusal(Sgd{.momentum = -0.5f}) == "--momentum is -0.5; " + share);
  CHECK(refusal(Sgd{.nesterov = true}) ==
        "--nesterov requires --momentum above 0; raise the momentum, or use --no-nesterov");
  CHECK(refusal(AdamW{.lr = 1e6f, .beta1 = 0, .beta2 = 0.9999, .eps = 1, .weight_decay = 0}) == "accepted");
  CHECK(refusal(AdamW{.lr = -1}) == "--lr is -1; " + rate);
  CHECK(refusal(AdamW{.weight_decay = -0.5f}) == "--weight-decay is -0.5; " + rate);
  CHECK(refusal(AdamW{.beta1 = 1}) == "--opt-betas is 1; " + share);
  CHECK(refusal(AdamW{.beta2 = 1}) == "--opt-betas is 1; " + share);
  CHECK(refusal(AdamW{.beta1 = -0.5}) == "--opt-betas is -0.5; " + share);
  CHECK(refusal(AdamW{.eps = 0}) == "--opt-eps is 0; it must be a number greater than 0, up to 1");
  CHECK(refusal(AdamW{.eps = 1.5f}) == "--opt-eps is 1.5; it must be a number greater than 0, up to 1");
  CHECK(refusal(RmsProp{.alpha = 0, .momentum = 0.9f, .centered = true}) == "accepted");
  CHECK(refusal(RmsProp{.alpha = 1}) == "--opt-alpha is 1; " + share);
  CHECK(refusal(RmsProp{.momentum = 1}) == "--momentum is 1; " + share);
  CHECK(refusal(Lamb{.beta1 = 1}) == "--opt-betas is 1; " + share);
  CHECK(refusal(Muon{.match_rms = false, .beta1 = 0}) == "accepted");
  CHECK(refusal(Muon{.momentum = 1}) == "--momentum is 1; " + share);
  CHECK(refusal(Muon{.momentum = 0}) ==
        "--nesterov requires --momentum above 0; raise the momentum, or use --no-nesterov");
}

TEST_CASE("the options of an optimizer show and set its own members") {
  CHECK(applying(optimizer_options(), Optimizer(Sgd{.lr = 0.25f, .momentum = 0.5f, .weight_decay = 0.125f})) ==
        Lines{"optimizer sgd", "lr 0.25", "momentum 0.5", "nesterov off", "weight-decay 0.125"});
  CHECK(applying(optimizer_options(), Optimizer(AdamW{})) ==
        Lines{"optimizer adamw", "lr 0.001", "opt-betas 0.9 0.999", "opt-eps 1e-08", "weight-decay 0.01"});
  CHECK(applying(optimizer_options(), Optimizer(RmsProp{.momentum = 0.5f})) ==
        Lines{"optimizer rmsprop", "lr 0.01", "momentum 0.5", "opt-eps 1e-08", "opt-alpha 0.99", "opt-centered off",
              "weight-decay 0"});
  CHECK(applying(optimizer_options(), Optimizer(Lamb{})) ==
        Lines{"optimizer lamb", "lr 0.001", "opt-betas 0.9 0.999", "opt-eps 1e-06", "weight-decay 0.01"});
  CHECK(applying(optimizer_options(), Optimizer(Muon{})) == Lines{"optimizer muon", "lr 0.001", "momentum 0.95",
                                                                  "nesterov on", "opt-betas 0.9 0.999", "opt-eps 1e-08",
                                                                  "opt-match-rms on", "weight-decay 0.1"});
  Optimizer optimizer = Sgd{.lr = 0.25f, .momentum = 0.5f};
  set(optimizer_options(), "optimizer", optimizer, std::string("sgd"));  // it is SGD already
  CHECK(std::get<Sgd>(optimizer).lr == 0.25f);
  set(optimizer_options(), "nesterov", optimizer, true);
  set(optimizer_options(), "momentum", optimizer, 0.75);
  CHECK((std::get<Sgd>(optimizer).nesterov && std::get<Sgd>(optimizer).momentum == 0.75f));
  set(optimizer_options(), "optimizer", optimizer, std::string("adamw"));
  CHECK(applying(optimizer_options(), optimizer) == applying(optimizer_options(), Optimizer(AdamW{})));
  set(optimizer_options(), "lr", optimizer, 2.0);
  set(optimizer_options(), "weight-decay", optimizer, 3.0);
  set(optimizer_options(), "opt-eps", optimizer, 0.5);
  set(optimizer_options(), "opt-betas", optimizer, std::vector{0.25, 0.75});
  const AdamW adamw = std::get<AdamW>(optimizer);
  CHECK((adamw.lr == 2 && adamw.weight_decay == 3 && adamw.eps == 0.5f && adamw.beta1 == 0.25 && adamw.beta2 == 0.75));
  CHECK_THROWS_WITH(
      set(optimizer_options(), "momentum", optimizer, 0.5),
      Catch::StartsWith("--momentum requires --optimizer sgd") && Catch::EndsWith(", but --optimizer is adamw"));
  Optimizer sgd = Sgd{};
  CHECK_THROWS_WITH(
      set(optimizer_options(), "opt-betas", sgd, std::vector<double>(2)),
      Catch::StartsWith("--opt-betas requires --optimizer adamw") && Catch::EndsWith(", but --optimizer is sgd"));
}

TEST_CASE("each kind of schedule has its own options") {
  Schedule schedule{.step_size = 2, .gamma = 0.5, .milestones = {1, 3}, .warmup_epochs = 4, .min_lr = 0.25};
  const std::string warmup = "lr-warmup-epochs 4";
  schedule.kind = ScheduleKind::constant;
  CHECK(applying(schedule_options(), schedule) == Lines{"lr-scheduler constant", warmup});
  schedule.kind = ScheduleKind::step;
  CHECK(applying(schedule_options(), schedule) == Lines{"lr-scheduler step", "lr-step-size 2", "lr-gamma 0.5", warmup});
  schedule.kind = ScheduleKind::multistep;
  CHECK(applying(schedule_options(), schedule) ==
        Lines{"lr-scheduler multistep", "lr-gamma 0.5", "lr-milestones 1 3", warmup});
  schedule.kind = ScheduleKind::cosine;
  CHECK(applying(schedule_options(), schedule) == Lines{"lr-scheduler cosine", "lr-min 0.25", warmup});
  schedule.kind = ScheduleKind::exponential;
  CHECK(applying(schedule_options(), schedule) == Lines{"lr-scheduler exponential", "lr-gamma 0.5", warmup});
  schedule.kind = ScheduleKind::polynomial;
  CHECK(applying(schedule_options(), schedule) ==
        Lines{"lr-scheduler polynomial", "lr-min 0.25", "lr-power 1", warmup});
  schedule.kind = ScheduleKind::onecycle;
  CHECK(applying(schedule_options(), schedule) ==
        Lines{"lr-scheduler onecycle", "lr-pct-start 0.3", "lr-div-factor 25", "lr-final-div-factor 10000", warmup});
  schedule.kind = ScheduleKind::plateau;
  CHECK(applying(schedule_options(), schedule) ==
        Lines{"lr-scheduler plateau", "lr-gamma 0.5", "lr-min 0.25", "lr-patience 10", warmup});
  set(schedule_options(), "lr-scheduler", schedule, std::string("step"));
  CHECK(schedule.kind == ScheduleKind::step);
}

TEST_CASE("an optimizer has a name, a rate, a kind and slots") {
  Optimizer sgd = Sgd{.lr = 0.25f, .momentum = 0.5f, .nesterov = true};
  Optimizer adamw = AdamW{.lr = 0.5f, .beta1 = 0.25, .beta2 = 0.75, .eps = 0.125f};
  CHECK((name_of(sgd) == "sgd" && name_of(adamw) == "adamw"));
  CHECK(engine::kind_of(sgd) == engine::UpdateKind{0, 1});
  CHECK(engine::kind_of(Sgd{}) == engine::UpdateKind{0, 0});
  CHECK(engine::kind_of(adamw) == engine::UpdateKind{1, 3});
  const RuleOptions momentum = kernels::rule_options(sgd), betas = kernels::rule_options(adamw);
  CHECK((momentum.momentum == 0.5 && momentum.nesterov == 1 && momentum.beta1 == 0));
  CHECK((betas.beta1 == 0.25 && betas.beta2 == 0.75 && betas.eps == 0.125 && betas.momentum == 0));
  CHECK(slot_names(engine::kind_of(sgd)) == std::vector<std::string_view>{"momentum_buffer"});
  CHECK(slot_names(engine::kind_of(Sgd{})).empty());
  CHECK(slot_names(engine::kind_of(adamw)) == std::vector<std::string_view>{"exp_avg", "exp_avg_sq"});
  learning_rate(sgd) = 7, learning_rate(adamw) = 8;
  CHECK((std::get<Sgd>(sgd).lr == 7 && std::get<AdamW>(adamw).lr == 8));
  CHECK((learning_rate(std::as_const(sgd)) == 7 && learning_rate(std::as_const(adamw)) == 8));
}

TEST_CASE("a state has the kind of its optimizer, with the optional slots that its tensors name") {
  const auto kind = [](const char* optimizer, const std::string& tensor) {
    return engine::kind_of(OptimizerState{optimizer, 1, {{tensor, Tensor()}}});
  };
  CHECK(kind("sgd", "momentum_buffer.w") == engine::UpdateKind{0, 1});
  CHECK(kind("sgd", "momentum_buffers.w") == engine::UpdateKind{0, 0});
  CHECK(kind("adamw", "exp_avg.w") == engine::UpdateKind{1, 3});
  CHECK_THROWS_WITH(kind("SGD", "w"), "there is no optimizer 'SGD'");
}

namespace {

struct Anything {
  template <typename T>
  operator T() const;
};

// The number of members of an aggregate.
template <typename Own, typename... Members>
constexpr std::size_t members() {
  if constexpr (requires { Own{Members()..., Anything()}; })
    return members<Own, Members..., Anything>();
  else
    return sizeof...(Members);
}

}  // namespace

TEST_CASE("every member of an optimizer is an option") {
  for (const Optimizer& optimizer : engine::every_optimizer()) {
    INFO(name_of(optimizer));
    std::size_t values = 0;
    for (const auto& row : optimizer_options().rows()) {
      const OptionValue value = row.get(optimizer);
      if (row.name != "optimizer" && !std::holds_alternative<std::monostate>(value))
        values += row.accepts.count == Accepts::Count::two ? 2 : 1;
    }
    CHECK(values == std::visit([]<typename Own>(const Own&) { return members<Own>(); }, optimizer));
  }
}
