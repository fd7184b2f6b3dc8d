// Options as data: which values an option accepts, how it names them, and how a table reads and sets a member.
#include "dp/option_table.h"

#include <cmath>
#include <limits>

#include "dp/error.h"
#include "support/catch.h"
#include "support/refusal.h"

namespace {

using namespace dp;
using Texts = std::vector<std::string>;

enum class Colour { red, green };

struct Part {
  int depth = 2;
};

struct Settings {
  bool on = false, fast = true;
  int count = 3;
  std::uint64_t seed = 5;
  float rate = 0.02f;
  double share = 0.5;
  Colour colour = Colour::green;
  std::string file;
  std::optional<double> limit{};
  std::vector<double> steps{};
  Part part{};
};

OptionTable<Settings> table_of_settings() {
  OptionTable<Part> parts;
  parts.group("Parts");
  parts.add("depth", accepts::whole(1, 4), &Part::depth, "of the part");
  OptionTable<Settings> table;
  table.group("First");
  table.add("on,-o,!--off", accepts::flag(), &Settings::on, "turns it on");
  table.add("count", accepts::whole(0, 9), &Settings::count, "how many").unset_at_zero();
  table.add("seed", accepts::seed(), &Settings::seed, "of the numbers").not_recorded();
  table.group("Second");
  table.add("rate", accepts::positive(1), &Settings::rate, "per step").shown("by model");
  table.add("share", accepts::below(0, 1), &Settings::share, "of all").without({"rate", "count"});
  table.add("colour", accepts::one_of({"red", "green"}), &Settings::colour, "red or green").goes_with("on");
  table.add("file", accepts::text("a file"), &Settings::file, "its name").only_on(DeviceKind::cuda);
  table.add("limit", accepts::number(0, 5), &Settings::limit, "at most");
  table.add("steps", accepts::list(accepts::number(0, 5)), &Settings::steps, "in order");
  table
      .add(
          "own", accepts::whole(0, 9), [](auto& options) { return options.on ? &options.count : nullptr; }, "if on")
      .needs("--on", "on");
  table
      .add(
          "other", accepts::whole(0, 9), [](auto& options) { return options.on ? &options.count : nullptr; }, "if on")
      .needs("--on");
  table.add_off("slow", &Settings::fast, "turns it off");
  table.include(parts, &Settings::part);
  return table;
}

std::string parse_refusal(const Accepts& accepts, const Texts& texts) {
  return test::refusal_of([&] { parse_option(accepts, texts); });
}

}  // namespace

TEST_CASE("the description of accepted values is plain text") {
  CHECK(to_text(accepts::flag()) == "on or off");
  CHECK(to_text(accepts::whole(1, 1048576)) == "a whole number from 1 to 1048576");
  CHECK(to_text(accepts::whole(-3, 0)) == "a whole number from -3 to 0");
  CHECK(to_text(accepts::seed()) == "a whole number from 0 to 18446744073709551615");
  CHECK(to_text(accepts::number(1e-6, 0.25)) == "a number from 0.000001 to 0.25");
  CHECK(to_text(accepts::number(0, 100)) == "a number from 0 to 100");
  CHECK(to_text(accepts::below(0, 1)) == "a number from 0 to below 1");
  CHECK(to_text(accepts::positive(1.5)) == "a number greater than 0, up to 1.5");
  CHECK(to_text(accepts::one_of({"red", "green"})) == "one of red, green");
  CHECK(to_text(accepts::text()) == "a text");
  CHECK(to_text(accepts::text("a file")) == "a file");
}

TEST_CASE("every kind of value has a text") {
  const std::pair<OptionValue, std::string> rows[] = {
      {OptionValue{}, "none"},
      {true, "on"},
      {false, "off"},
      {std::int64_t{-7}, "-7"},
      {std::numeric_limits<std::uint64_t>::max(), "18446744073709551615"},
      {0.1, "0.1"},
      {std::string("x y"), "x y"},
      {std::vector{0.9, 0.999}, "0.9 0.999"},
      {Texts{"a", "b"}, "a b"}};
  for (const auto& [value, text] : rows) CHECK(to_text(value) == text);
}

TEST_CASE("an option accepts values of its own kind and range only") {
  const Accepts kinds[] = {accepts::flag(), accepts::whole(0, 9), accepts::seed(), accepts::number(0, 9),
                           accepts::text()};
  const OptionValue values[] = {true, std::int64_t{4}, std::uint64_t{4}, 4.0, std::string("4")};
  for (std::size_t kind = 0; kind < 5; ++kind) {
    for (std::size_t value = 0; value < 5; ++value) {
      INFO(to_text(kinds[kind]) << ", value " << value);
      CHECK(is_accepted(kinds[kind], values[value]) == (kind == value));
    }
    CHECK_FALSE(is_accepted(kinds[kind], OptionValue{}));
  }
  const auto whole = [](std::int64_t value) { return is_accepted(accepts::whole(-2, 9), OptionValue{value}); };
  CHECK((whole(-2) && whole(9) && !whole(-3) && !whole(10)));
  const auto number = [](double value) { return is_accepted(accepts::number(-2, 9), value); };
  CHECK((number(-2) && number(9) && !number(-2.001) && !number(9.001) && !number(NAN)));
  const auto below = [](double value) { return is_accepted(accepts::below(0, 1), value); };
  CHECK((below(0) && below(0.9999) && !below(1) && !below(-1e-9)));
  CHECK_FALSE(below(0.999999999));  // 1 as a float
  const auto positive = [](double value) { return is_accepted(accepts::positive(1), value); };
  CHECK((positive(1e-9) && positive(1) && !positive(0) && !positive(1.001) && !positive(-1)));
  const auto text = [](const Accepts& accepts, const char* value) {
    return is_accepted(accepts, OptionValue{std::string(value)});
  };
  CHECK((text(accepts::text(), "") && text(accepts::text("a file"), "x") && !text(accepts::text("a file"), "")));
  CHECK((text(accepts::one_of({"red"}), "red") && !text(accepts::one_of({"red"}), "blue")));
  const Accepts two = accepts::two(accepts::below(0, 1));
  CHECK(is_accepted(two, OptionValue{std::vector{0.5, 0.9}}));
  CHECK_FALSE(is_accepted(two, OptionValue{std::vector{0.5, 1.0}}));
  CHECK_FALSE(is_accepted(two, OptionValue{std::vector{1.0, 0.5}}));
  CHECK_FALSE(is_accepted(two, OptionValue{std::vector{0.5}}));
  CHECK(is_accepted(accepts::list(accepts::number(0, 1)), OptionValue{std::vector{0.5}}));
  CHECK_FALSE(is_accepted(accepts::list(accepts::one_of({"a"})), OptionValue{Texts{"a", "b"}}));
}

TEST_CASE("texts are parsed to values, names in any case, and an error quotes the text and the range") {
  CHECK(parse_option(accepts::flag(), {"true"}) == OptionValue{true});
  CHECK(parse_option(accepts::flag(), {"false"}) == OptionValue{false});
  CHECK(parse_option(accepts::whole(-5, 9), {"-5"}) == OptionValue{std::int64_t{-5}});
  CHECK(parse_option(accepts::seed(), {"18446744073709551615"}) ==
        OptionValue{std::numeric_limits<std::uint64_t>::max()});
  CHECK(parse_option(accepts::number(0, 9), {"2.5e-1"}) == OptionValue{0.25});
  CHECK(parse_option(accepts::text(), {""}) == OptionValue{std::string()});
  CHECK(parse_option(accepts::one_of({"sgd", "AdamW"}), {"aDAMw"}) == OptionValue{std::string("AdamW")});
  CHECK(parse_option(accepts::one_of({"x", "X"}), {"X"}) == OptionValue{std::string("X")});
  CHECK(parse_option(accepts::one_of({"az", "AZ"}), {"AZ"}) == OptionValue{std::string("AZ")});
  CHECK(parse_option(accepts::two(accepts::number(0, 9)), {"1", "2"}) == OptionValue{std::vector{1.0, 2.0}});
  CHECK(parse_option(accepts::list(accepts::number(0, 9)), {"3"}) == OptionValue{std::vector{3.0}});
  CHECK(parse_option(accepts::list(accepts::one_of({"A", "b"})), {"B", "a", "b"}) == OptionValue{Texts{"b", "A", "b"}});

  for (const char* text : {"", "x", "1.0", "9x", " 9", "10", "-1"})
    CHECK(parse_refusal(accepts::whole(0, 9), {text}) ==
          "'" + std::string(text) + "' is not a whole number from 0 to 9");
  for (const char* text : {"", "x", "0x1", "1 ", "nan", "9.5"})
    CHECK(parse_refusal(accepts::number(0, 9), {text}) == "'" + std::string(text) + "' is not a number from 0 to 9");
  CHECK(parse_refusal(accepts::flag(), {"on"}) == "'on' is not on or off");
  CHECK(parse_refusal(accepts::one_of({"red", "green"}), {"blue"}) == "'blue' is not one of red, green");
  CHECK(parse_refusal(accepts::text("a file"), {""}) == "it is empty; name a file");
  CHECK(parse_refusal(accepts::whole(0, 9), {"1", "2"}) == "2 values; give one");
  CHECK(parse_refusal(accepts::whole(0, 9), {}) == "0 values; give one");
  CHECK(parse_refusal(accepts::two(accepts::number(0, 9)), {"1"}) == "two values are needed, not 1");
  CHECK(parse_refusal(accepts::two(accepts::number(0, 9)), {"1", "2", "3"}) == "two values are needed, not 3");
  CHECK(parse_refusal(accepts::list(accepts::number(0, 9)), {"1", "x"}) == "'x' is not a number from 0 to 9");
}

TEST_CASE("a row of the table returns the properties that it was created with") {
  const auto table = table_of_settings();
  CHECK(table.find("none") == nullptr);
  const auto row = [&](const char* name) { return *table.find(name); };
  CHECK(row("on").spellings == "-o,!--off");
  CHECK(row("count").spellings.empty());
  CHECK((row("on").group == "First" && row("rate").group == "Second" && row("depth").group == "Parts"));
  CHECK((row("on").help == "turns it on" && row("own").help == "if on" && row("slow").help == "turns it off"));
  CHECK((row("rate").default_text == "by model" && row("share").default_text.empty()));
  CHECK(row("share").excludes == Texts{"rate", "count"});
  CHECK((row("colour").required_option == "on" && row("colour").requirement.empty()));
  CHECK((row("own").required_option == "on" && row("own").requirement == "--on"));
  CHECK((row("file").only == DeviceKind::cuda && !row("on").only.has_value()));
  CHECK((row("on").recorded && !row("seed").recorded));
}

TEST_CASE("a row shows the value of its member and sets it") {
  const auto table = table_of_settings();
  Settings settings;
  const auto text = [&](const char* name) { return table.text(name, settings); };
  CHECK((text("on") == "off" && text("slow") == "off" && text("count") == "3" && text("seed") == "5"));
  CHECK((text("rate") == "0.02" && text("share") == "0.5" && text("colour") == "green" && text("depth") == "2"));
  CHECK((text("file") == "none" && text("limit") == "none" && text("steps") == "none" && text("own") == "none"));
  const auto set = [&](const char* name, const OptionValue& value) { table.set(*table.find(name), settings, value); };
  set("on", true), set("slow", true), set("count", std::int64_t{8}), set("seed", std::uint64_t{6}), set("rate", 0.75);
  set("share", 0.25), set("colour", std::string("red")), set("file", std::string("f")), set("limit", 1.5);
  set("steps", std::vector{1.0, 2.0}), set("depth", std::int64_t{4});
  CHECK((settings.on && !settings.fast && settings.count == 8 && settings.seed == 6 && settings.rate == 0.75f));
  CHECK((settings.share == 0.25 && settings.colour == Colour::red && settings.file == "f" && settings.limit == 1.5));
  CHECK((settings.steps == std::vector{1.0, 2.0} && settings.part.depth == 4));
  CHECK((text("on") == "on" && text("slow") == "on" && text("colour") == "red" && text("depth") == "4"));
  CHECK((text("file") == "f" && text("limit") == "1.5" && text("steps") == "1 2" && text("own") == "8"));
  set("own", std::int64_t{0});
  CHECK(settings.count == 0);
  CHECK((text("own") == "0" && text("count") == "none"));  // 0 means that `count` is not set
  set("slow", false);
  CHECK(settings.fast);
}

TEST_CASE("a table refuses an option that does not apply and a value out of range") {
  const auto table = table_of_settings();
  Settings settings;
  const auto set = [&](const char* name) {
    return test::refusal_of([&] { table.set(*table.find(name), settings, std::int64_t{1}); });
  };
  CHECK(set("own") == "--own requires --on");  // the value "off" is not shown
  CHECK(set("other") == "--other requires --on");
  CHECK(settings.count == 3);
  CHECK(test::refusal_of([&] { refuse_unmet(*table.find("own"), "bright"); }) ==
        "--own requires --on, but --on is bright");
  CHECK(test::refusal_of([&] { table.check(settings); }) == "accepted");
  settings.part.depth = 5;
  CHECK(test::refusal_of([&] { table.check(settings); }) == "--depth is 5; it must be a whole number from 1 to 4");
  settings.part.depth = 1, settings.limit = 6;
  CHECK(test::refusal_of([&] { table.check(settings); }) == "--limit is 6; it must be a number from 0 to 5");
  settings.limit.reset(), settings.rate = 0;
  CHECK(test::refusal_of([&] { table.check(settings); }) == "--rate is 0; it must be a number greater than 0, up to 1");
}
