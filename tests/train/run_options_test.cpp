// The table of options: each row describes its option completely, and what it sets it also shows.
#include "dp/run_options.h"

#include <map>
#include <regex>
#include <set>

#include "support/catch.h"
#include "train/expect_error.h"

namespace {

using namespace dp;
using Row = Option<TrainerOptions>;
using Kind = Accepts::Kind;
using Count = Accepts::Count;

// Options in which the option applies.
TrainerOptions options_for(const std::string& name) {
  static const std::map<std::string, std::pair<std::string, OptionValue>> needed{
      {"opt-betas", {"optimizer", "adamw"}},
      {"opt-eps", {"optimizer", "adamw"}},
      {"opt-alpha", {"optimizer", "rmsprop"}},
      {"opt-centered", {"optimizer", "rmsprop"}},
      {"opt-match-rms", {"optimizer", "muon"}},
      {"lr-step-size", {"lr-scheduler", "step"}},
      {"lr-gamma", {"lr-scheduler", "step"}},
      {"lr-milestones", {"lr-scheduler", "multistep"}},
      {"lr-power", {"lr-scheduler", "polynomial"}},
      {"lr-pct-start", {"lr-scheduler", "onecycle"}},
      {"lr-div-factor", {"lr-scheduler", "onecycle"}},
      {"lr-final-div-factor", {"lr-scheduler", "onecycle"}},
      {"lr-patience", {"lr-scheduler", "plateau"}},
      {"amp-dtype", {"amp", true}},
      {"huber-delta", {"output-loss", "huber"}},
      {"smooth-l1-beta", {"output-loss", "smooth_l1"}},
      {"pos-weight", {"output-loss", "bce_with_logits"}},
      {"focal-alpha", {"output-loss", "focal"}},
      {"focal-gamma", {"output-loss", "focal"}},
      {"model-ema-decay", {"model-ema", true}},
      {"init-partial", {"init", "weights"}},
      {"ra-ops", {"auto-augment", "ra"}},
      {"ra-magnitude", {"auto-augment", "ra"}},
      {"augmix-severity", {"auto-augment", "augmix"}},
      {"micro-batches", {"pipeline-stages", std::int64_t{2}}},
      {"schedule", {"pipeline-stages", std::int64_t{2}}},
      {"pipeline-split", {"pipeline-stages", std::int64_t{2}}},
      {"recompute", {"pipeline-stages", std::int64_t{2}}},
      {"trace-steps", {"profile", true}}};
  TrainerOptions options;
  if (const auto at = needed.find(name); at != needed.end()) {
    const auto& [other, value] = at->second;
    run_options().set(*run_options().find(other), options, value);
  }
  return options;
}

const OwnLoss& own_loss() {
  static const bool added = [] {
    losses::add({"zero", "for this test", [](const Tensor&, const Batch&) { return Loss(); }});
    return true;
  }();
  return losses::find(added ? "zero" : "");
}

const OwnAugmentation& own_augmentation() {
  static const bool added = [] {
    augmentations::add({"same", "for this test", [](std::span<std::uint8_t>, const Shape&, Random&) {}});
    return true;
  }();
  return augmentations::find(added ? "same" : "");
}

// Texts that a row accepts: both ends of a range, each name.
std::vector<std::vector<std::string>> accepted_texts(const Row& row) {
  const Accepts& accepts = row.accepts;
  // The middle of the range instead of an excluded end.
  const auto inside = [&](double end, bool excluded) {
    return excluded ? (accepts.lowest + accepts.highest) / 2 : end;
  };
  std::vector<std::string> each;
  switch (accepts.kind) {
    case Kind::flag: return {};
    case Kind::whole:
      each = {std::to_string(static_cast<std::int64_t>(accepts.lowest)),
              std::to_string(static_cast<std::int64_t>(accepts.highest))};
      break;
    case Kind::seed: each = {"0", "18446744073709551615"}; break;
    case Kind::number:
      each = {to_text(OptionValue{inside(accepts.lowest, accepts.above_lowest)}),
              to_text(OptionValue{inside(accepts.highest, accepts.below_highest)})};
      break;
    case Kind::text:
      each = accepts.names;
      if (row.name == "micro-batches") each = {"auto", "4096"};
      if (row.name == "own-loss") each = {own_loss().name};
      if (row.name == "own-augmentation") each = {own_augmentation().name};
      if (row.name == "lr-factor") each = {"a*=0.5"};
      if (row.name == "class-weights") each = {"balanced", "1,0.5,2"};
      if (row.name == "save-every") each = {"0", "2,500steps,10m"};
      if (row.name == "color-jitter") each = {"0.4", "0.4,0.3,0.2,0.1"};
      if (each.empty()) each = {"3:4"};
      break;
  }
  std::vector<std::vector<std::string>> texts;
  for (const std::string& text : each) {
    const std::size_t count = accepts.count == Count::one ? 1 : 2;
    texts.emplace_back(count, text);
  }
  return texts;
}

TEST_CASE("every option has a name, a heading and a help text that names its choices") {
  std::set<std::string> names;
  for (const Row& row : run_options().rows()) {
    INFO(row.name);
    CHECK(std::regex_match(row.name, std::regex("[a-z][a-z0-9]*(-[a-z0-9]+)*")));
    CHECK(names.insert(row.name).second);
    CHECK(row.spellings.find(' ') == std::string::npos);
    CHECK_FALSE(row.group.empty());
    CHECK(row.help.size() > 5);
    for (const std::string& choice : row.accepts.names) CHECK_THAT(row.help, Catch::Contains(choice));
    if (!row.required_option.empty()) CHECK(run_options().find(row.required_option) != nullptr);
  }
  CHECK(names.size() >= 55);
}

TEST_CASE("an option shows the value that it was set to, at both ends of its range and for each name") {
  int set = 0;
  for (const Row& row : run_options().rows()) {
    for (const auto& texts : accepted_texts(row)) {
      INFO(row.name << " " << texts.front());
      TrainerOptions options = options_for(row.name);
      const OptionValue value = parse_option(row.accepts, texts);
      run_options().set(row, options, value);
      if (row.name == "bucket-mb")  // whole bytes
        CHECK(std::get<double>(row.get(options)) == Approx(std::get<double>(value)).margin(1.0 / (1 << 20)));
      else
        CHECK(row.get(options) == value);
      CHECK_NOTHROW(run_options().check(options));
      ++set;
    }
    if (row.accepts.kind != Kind::flag) continue;
    for (const bool on : {true, false}) {
      INFO(row.name << " " << on);
      TrainerOptions options = options_for(row.name);
      run_options().set(row, options, on);
      CHECK(row.get(options) == OptionValue{on});
      ++set;
    }
  }
  CHECK(set > 110);
}

TEST_CASE("a number outside the range of its option is refused as a text and by the check of the API") {
  int tried = 0;
  for (const Row& row : run_options().rows()) {
    const Accepts& accepts = row.accepts;
    if (accepts.kind != Kind::whole && accepts.kind != Kind::number) continue;
    const bool whole = accepts.kind == Kind::whole;
    const double width = whole ? 1 : 0.5 * std::abs(accepts.lowest) + 1e-4;
    for (const double outside : {accepts.lowest - width, 2 * accepts.highest + 1}) {
      INFO(row.name << " " << outside);
      const std::string text = whole ? std::to_string(static_cast<std::int64_t>(outside)) : std::to_string(outside);
      CHECK_THROWS_AS(parse_option(accepts, std::vector<std::string>(accepts.count == Count::two ? 2 : 1, text)),
                      Error);
      if (accepts.count != Count::one || outside == 0) continue;  // 0 may mean that it is not set
      if (row.name == "bucket-mb") continue;                      // bytes have no sign
      TrainerOptions options = options_for(row.name);
      row.assign(options, whole ? OptionValue{static_cast<std::int64_t>(outside)} : OptionValue{outside});
      dp::test::expect_error(ErrorCode::usage, {row.name + " is ", "it must be " + to_text(accepts)},
                             [&] { run_options().check(options); });
      ++tried;
    }
  }
  CHECK(tried > 30);
}

TEST_CASE("an option that does not apply is refused with what it needs and what there is") {
  const auto refused = [](const char* name, OptionValue value, const std::vector<std::string>& fragments) {
    TrainerOptions options;
    options.schedule.kind = ScheduleKind::cosine;
    dp::test::expect_error(ErrorCode::usage, fragments,
                           [&] { run_options().set(*run_options().find(name), options, value); });
  };
  refused("opt-eps", 0.1, {"--opt-eps requires --optimizer adamw", "--optimizer is sgd"});
  refused("lr-gamma", 0.1,
          {"--lr-gamma requires --lr-scheduler step, multistep, exponential or plateau", "--lr-scheduler is cosine"});
  refused("amp-dtype", "float16", {"--amp-dtype requires --amp"});
  refused("model-ema-decay", 0.5, {"--model-ema-decay requires --model-ema"});
  refused("ra-ops", std::int64_t{3}, {"--ra-ops requires --auto-augment ra"});
  refused("augmix-severity", std::int64_t{3}, {"--augmix-severity requires --auto-augment augmix"});
  refused("init-partial", true, {"--init-partial requires --init FILE"});
  refused("trace-steps", "1:2", {"--trace-steps requires --trace or --profile"});
}

TEST_CASE("traced steps are 10 from step 10, unless FIRST:COUNT names others") {
  const auto set = [](TrainerOptions& options, const char* name, const OptionValue& value) {
    run_options().set(*run_options().find(name), options, value);
  };
  const auto steps = [](const TrainerOptions& options) {
    return std::pair(options.parallel.trace_first, options.parallel.trace_steps);
  };
  for (const char* name : {"trace", "profile"}) {
    TrainerOptions options;
    set(options, name, name == std::string("trace") ? OptionValue{std::string("file")} : OptionValue{true});
    CHECK(steps(options) == std::pair<std::int64_t, std::int64_t>(10, 10));
    set(options, "trace-steps", std::string("0:5"));
    CHECK(steps(options) == std::pair<std::int64_t, std::int64_t>(0, 5));
    set(options, "profile", true);  // keeps them
    CHECK(steps(options) == std::pair<std::int64_t, std::int64_t>(0, 5));
    CHECK(run_options().find("trace-steps")->get(options) == OptionValue{std::string("0:5")});
    for (const char* text : {"", "5", "5:", ":3", "a:1", "1:0", "1:-1", "-1:5", "1:2x", "1;2", "1:b"})
      dp::test::expect_error(ErrorCode::usage,
                             {"--trace-steps '" + std::string(text) + "' is not FIRST:COUNT, such as 10:10"},
                             [&] { set(options, "trace-steps", std::string(text)); });
  }
  TrainerOptions off;
  set(off, "profile", false);
  CHECK(off.parallel.trace_steps == 0);
}

TEST_CASE("colour jitter is one factor for brightness, contrast and saturation, or four numbers") {
  TrainerOptions options;
  const auto& row = *run_options().find("color-jitter");
  run_options().set(row, options, std::string("0.25"));
  CHECK(options.augmentation.color_jitter == ColorJitter{0.25f, 0.25f, 0.25f, 0});
  run_options().set(row, options, std::string("0.5,0.25,0,0.125"));
  CHECK(options.augmentation.color_jitter == ColorJitter{0.5f, 0.25f, 0, 0.125f});
  for (const char* text : {"", "x", "0.4,", ",", "0.4,0.4", "0.4,0.4,0.4", "1,2,3,4,5", "0.4;0.4", "0.4 "})
    dp::test::expect_error(ErrorCode::usage,
                           {"--color-jitter '" + std::string(text) + "' is neither a factor, such as 0.4, nor "},
                           [&] { run_options().set(row, options, std::string(text)); });
}

}  // namespace
