#include "dp/option_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "dp/error.h"

namespace dp {
namespace {

using Kind = Accepts::Kind;
using Count = Accepts::Count;

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::usage, why); }

template <typename T>
std::optional<T> parsed(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string shown(double value) {
  std::string text = fmt::format("{:f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

// Empty: the text is not a value of this kind at all.
std::optional<OptionValue> parse_one(Kind kind, const std::string& text) {
  switch (kind) {
    case Kind::whole: return parsed<std::int64_t>(text);
    case Kind::seed: return parsed<std::uint64_t>(text);
    case Kind::number: return parsed<double>(text);
    case Kind::flag:
      return text == "true"    ? std::optional<OptionValue>(true)
             : text == "false" ? std::optional<OptionValue>(false)
                               : std::nullopt;
    case Kind::text: return text;
  }
  return std::nullopt;
}

std::string lower_case(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

// Finds the name that equals the text if case is ignored ("AdamW"). Returns the text itself if no name does.
std::string canonical(const std::vector<std::string>& names, const std::string& text) {
  const auto at =
      std::ranges::find_if(names, [&](const std::string& name) { return lower_case(name) == lower_case(text); });
  return at == names.end() || std::ranges::find(names, text) != names.end() ? text : *at;
}

OptionValue parse_accepted(const Accepts& accepts, const std::string& text) {
  if (!accepts.remedy.empty() && text.empty()) refuse("it is empty; name " + accepts.remedy);
  const std::optional<OptionValue> value = parse_one(accepts.kind, canonical(accepts.names, text));
  if (!value || !is_accepted(accepts, *value)) refuse(fmt::format("'{}' is not {}", text, to_text(accepts)));
  return *value;
}

struct IsAccepted {
  const Accepts& accepts;

  bool operator()(std::monostate) const { return false; }
  bool operator()(bool) const { return accepts.kind == Kind::flag; }
  bool operator()(std::uint64_t) const { return accepts.kind == Kind::seed; }
  bool operator()(std::int64_t value) const {
    return accepts.kind == Kind::whole && value >= static_cast<std::int64_t>(accepts.lowest) &&
           value <= static_cast<std::int64_t>(accepts.highest);
  }
  bool operator()(double value) const {
    return accepts.kind == Kind::number && value >= accepts.lowest && value <= accepts.highest &&
           !(accepts.above_lowest && value == accepts.lowest) &&
           !(accepts.below_highest && static_cast<float>(value) >= static_cast<float>(accepts.highest));
  }
  bool operator()(const std::string& value) const {
    return accepts.kind == Kind::text && !(value.empty() && !accepts.remedy.empty()) &&
           (accepts.names.empty() || std::ranges::find(accepts.names, value) != accepts.names.end());
  }
  template <typename T>
  bool operator()(const std::vector<T>& values) const {
    return (accepts.count != Count::two || values.size() == 2) && std::ranges::all_of(values, *this);
  }
};

struct ToText {
  std::string operator()(std::monostate) const { return "none"; }
  std::string operator()(bool value) const { return value ? "on" : "off"; }
  std::string operator()(const std::string& value) const { return value; }
  std::string operator()(const std::vector<double>& values) const { return fmt::format("{}", fmt::join(values, " ")); }
  std::string operator()(const std::vector<std::string>& values) const {
    return fmt::format("{}", fmt::join(values, " "));
  }
  template <typename T>
  std::string operator()(T value) const {
    return fmt::format("{}", value);
  }
};

}  // namespace

namespace accepts {

Accepts flag() { return {}; }
Accepts whole(std::int64_t lowest, std::int64_t highest) {
  return {.kind = Kind::whole, .lowest = static_cast<double>(lowest), .highest = static_cast<double>(highest)};
}
Accepts number(double lowest, double highest) { return {.kind = Kind::number, .lowest = lowest, .highest = highest}; }
Accepts below(double lowest, double limit) {
  return {.kind = Kind::number, .lowest = lowest, .highest = limit, .below_highest = true};
}
Accepts positive(double highest) { return {.kind = Kind::number, .highest = highest, .above_lowest = true}; }
Accepts seed() { return {.kind = Kind::seed}; }
Accepts one_of(std::vector<std::string> names) { return {.kind = Kind::text, .names = std::move(names)}; }
Accepts text(std::string remedy) { return {.kind = Kind::text, .remedy = std::move(remedy)}; }
Accepts two(Accepts each) { return each.count = Count::two, each; }
Accepts list(Accepts each) { return each.count = Count::list, each; }

}  // namespace accepts

double option_fields::shortest(float value) { return std::stod(fmt::format("{}", value)); }

std::string to_text(const Accepts& accepts) {
  switch (accepts.kind) {
    case Kind::flag: return "on or off";
    case Kind::whole: return fmt::format("a whole number from {} to {}", shown(accepts.lowest), shown(accepts.highest));
    case Kind::seed: return "a whole number from 0 to 18446744073709551615";
    case Kind::number:
      if (accepts.above_lowest)
        return fmt::format("a number greater than {}, up to {}", shown(accepts.lowest), shown(accepts.highest));
      return fmt::format("a number from {} to {}{}", shown(accepts.lowest), accepts.below_highest ? "below " : "",
                         shown(accepts.highest));
    case Kind::text: break;
  }
  if (accepts.names.empty()) return accepts.remedy.empty() ? "a text" : accepts.remedy;
  return fmt::format("one of {}", fmt::join(accepts.names, ", "));
}

std::string to_text(const OptionValue& value) { return std::visit(ToText{}, value); }

bool is_accepted(const Accepts& accepts, double number) { return IsAccepted{accepts}(number); }

bool is_accepted(const Accepts& accepts, const OptionValue& value) { return std::visit(IsAccepted{accepts}, value); }

OptionValue parse_option(const Accepts& accepts, const std::vector<std::string>& texts) {
  if (accepts.count == Count::one && texts.size() != 1) refuse(fmt::format("{} values; give one", texts.size()));
  if (accepts.count == Count::one) return parse_accepted(accepts, texts.back());
  if (accepts.count == Count::two && texts.size() != 2)
    refuse(fmt::format("two values are needed, not {}", texts.size()));
  if (accepts.kind == Kind::text) {
    std::vector<std::string> values;
    for (const std::string& text : texts) values.push_back(std::get<std::string>(parse_accepted(accepts, text)));
    return values;
  }
  std::vector<double> numbers;
  for (const std::string& text : texts) numbers.push_back(std::get<double>(parse_accepted(accepts, text)));
  return numbers;
}

void refuse_unmet(const OptionText& option, const std::string& instead) {
  refuse(fmt::format(
      "--{} requires {}{}", option.name, option.requirement,
      instead.empty() || instead == "off" ? "" : fmt::format(", but --{} is {}", option.required_option, instead)));
}

void refuse_value(const OptionText& option, const OptionValue& value) {
  refuse(fmt::format("--{} is {}; it must be {}", option.name, to_text(value), to_text(option.accepts)));
}

}  // namespace dp
