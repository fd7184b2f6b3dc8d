// Options as data: a row states the name, the range, the help and the default of an option once. The command line,
// config.toml, checkpoints and the checks of the API read the rows.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "dp/device.h"

namespace dp {

// The value of an option. monostate: not set.
using OptionValue = std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string,
                                 std::vector<double>, std::vector<std::string>>;

// The values that an option accepts.
struct Accepts {
  enum class Kind { flag, whole, seed, number, text };
  // How many: one, exactly two, a list separated by commas, or one each time that the option is given.
  enum class Count { one, two, list };
  Kind kind = Kind::flag;
  Count count = Count::one;
  double lowest = 0, highest = 0;    // of whole and number
  bool above_lowest = false;         // `lowest` itself is not accepted
  bool below_highest = false;        // nor is `highest`, or a number that becomes it when rounded to float
  std::vector<std::string> names{};  // of text: these only; empty: any text
  std::string remedy{};              // of text: must not be empty; the error asks for this, such as "a file"
};

namespace accepts {
Accepts flag();
Accepts whole(std::int64_t lowest, std::int64_t highest);
Accepts number(double lowest, double highest);
Accepts below(double lowest, double limit);  // without the limit
Accepts positive(double highest);            // without 0
Accepts seed();                              // whole, up to 2^64-1
Accepts one_of(std::vector<std::string> names);
Accepts text(std::string remedy = "");  // with a remedy: not empty
Accepts two(Accepts each);
Accepts list(Accepts each);
}  // namespace accepts

std::string to_text(const Accepts& accepts);  // "a whole number from 1 to 8"
std::string to_text(const OptionValue& value);
bool is_accepted(const Accepts& accepts, double number);  // allocates nothing
bool is_accepted(const Accepts& accepts, const OptionValue& value);
// Error(usage) that quotes the text, without the option's name, if it is not accepted.
OptionValue parse_option(const Accepts& accepts, const std::vector<std::string>& texts);

// What a row says of an option to people.
struct OptionText {
  std::string name;       // on the command line after "--", in config.toml and in checkpoints
  std::string spellings;  // further ones on the command line, such as "-b,--batch"; "!--no-x" turns a flag off
  std::string group;      // its heading in --help
  std::string help;
  Accepts accepts;
  std::string default_text{};  // shown in --help instead of the value in default options: "by model"
  std::string requirement{};   // what an option needs in order to apply: "--optimizer sgd"
  // The option that the requirement names. The error shows its value. If a resumed run changes it, this option's
  // recorded value is ignored.
  std::string required_option{};
  std::vector<std::string> excludes{};  // names of options that cannot be given as well
  std::optional<DeviceKind> only{};     // the only kind of device on which it has an effect
  bool recorded = true;                 // in config.toml and checkpoints: it describes the run, not a single call
};

template <typename Options>
struct Option : OptionText {
  std::function<OptionValue(const Options&)> get;            // monostate: not set, or does not apply
  std::function<bool(Options&, const OptionValue&)> assign;  // false: does not apply

  Option& shown(std::string text) { return default_text = std::move(text), *this; }
  Option& needs(std::string what, std::string option = "") {
    return requirement = std::move(what), required_option = std::move(option), *this;
  }
  Option& goes_with(std::string option) { return required_option = std::move(option), *this; }
  Option& without(std::vector<std::string> names) { return excludes = std::move(names), *this; }
  Option& only_on(DeviceKind kind) { return only = kind, *this; }
  Option& not_recorded() { return recorded = false, *this; }
  // The value 0 in the options means that it is not set.
  Option& unset_at_zero() {
    get = [inner = get](const Options& options) {
      OptionValue value = inner(options);
      return value == OptionValue{std::int64_t{0}} || value == OptionValue{0.0} ? OptionValue{} : value;
    };
    return *this;
  }
};

namespace option_fields {

double shortest(float value);  // 0.02, not 0.019999999552965164

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

// An enumerator has the name at its number in `accepts`. Empty texts and lists are not set.
template <typename T>
OptionValue value_of(const T& field, const Accepts& accepts) {
  if constexpr (IsOptional<T>::value)
    return field ? value_of(*field, accepts) : OptionValue{};
  else if constexpr (std::is_enum_v<T>)
    return accepts.names.at(static_cast<std::size_t>(field));
  else if constexpr (std::same_as<T, bool>)
    return field;
  else if constexpr (std::same_as<T, float>)
    return shortest(field);
  else if constexpr (std::floating_point<T>)
    return double{field};
  else if constexpr (std::unsigned_integral<T>)
    return std::uint64_t{field};
  else if constexpr (std::integral<T>)
    return std::int64_t{field};
  else
    return field.empty() ? OptionValue{} : OptionValue{field};
}

template <typename T>
void assign(T& field, const OptionValue& value, const Accepts& accepts) {
  if constexpr (IsOptional<T>::value) {
    assign(field.emplace(), value, accepts);
  } else if constexpr (std::is_enum_v<T>) {
    for (std::size_t i = 0; i < accepts.names.size(); ++i)
      if (accepts.names[i] == std::get<std::string>(value)) field = static_cast<T>(i);
  } else if constexpr (std::floating_point<T>) {
    field = static_cast<T>(std::get<double>(value));
  } else if constexpr (std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, std::uint64_t>) {
    field = static_cast<T>(std::get<std::int64_t>(value));
  } else {
    field = std::get<T>(value);
  }
}

}  // namespace option_fields

// Error(usage): the option needs another one, whose value is `instead`; empty: not shown.
[[noreturn]] void refuse_unmet(const OptionText& option, const std::string& instead);
// Error(usage): the value is not accepted.
[[noreturn]] void refuse_value(const OptionText& option, const OptionValue& value);

template <typename Options>
class OptionTable {
 public:
  using Row = Option<Options>;

  // The heading of the rows added from here on.
  void group(std::string name) { group_ = std::move(name); }

  // `spellings`: the name, then further ones, such as "batch-size,-b". `field`: a pointer to a member, or a function
  // from (const) options to a pointer to the value, null if the option does not apply.
  template <typename Field>
  Row& add(const std::string& spellings, Accepts accepts, Field field, std::string help) {
    const auto place = [field](auto& options) {
      if constexpr (std::is_member_object_pointer_v<Field>)
        return &(options.*field);
      else
        return field(options);
    };
    return add(
        spellings, accepts, std::move(help),
        [place, accepts](const Options& options) {
          const auto* const at = place(options);
          return at ? option_fields::value_of(*at, accepts) : OptionValue{};
        },
        [place, accepts](Options& options, const OptionValue& value) {
          auto* const at = place(options);
          if (at) option_fields::assign(*at, value, accepts);
          return at != nullptr;
        });
  }

  // An option that is not a member as it is.
  Row& add(const std::string& spellings, Accepts accepts, std::string help,
           std::function<OptionValue(const Options&)> get, std::function<bool(Options&, const OptionValue&)> assign) {
    const std::size_t comma = spellings.find(',');
    Row row;
    row.name = spellings.substr(0, comma);
    if (comma != std::string::npos) row.spellings = spellings.substr(comma + 1);
    row.group = group_;
    row.help = std::move(help);
    row.accepts = std::move(accepts);
    row.get = std::move(get);
    row.assign = std::move(assign);
    return rows_.emplace_back(std::move(row));
  }

  // A flag that turns a member off.
  Row& add_off(const std::string& spellings, bool Options::*member, std::string help) {
    return add(
        spellings, accepts::flag(), std::move(help), [member](const Options& options) { return !(options.*member); },
        [member](Options& options, const OptionValue& value) {
          options.*member = !std::get<bool>(value);
          return true;
        });
  }

  // The rows of the options that are a member of these.
  template <typename Part>
  void include(const OptionTable<Part>& part, Part Options::*member) {
    for (const Option<Part>& each : part.rows()) {
      Row row;
      static_cast<OptionText&>(row) = each;
      row.get = [get = each.get, member](const Options& options) { return get(options.*member); };
      row.assign = [assign = each.assign, member](Options& options, const OptionValue& value) {
        return assign(options.*member, value);
      };
      rows_.push_back(std::move(row));
    }
  }

  const std::vector<Row>& rows() const { return rows_; }
  // Null if there is none.
  const Row* find(std::string_view name) const {
    for (const Row& row : rows_)
      if (row.name == name) return &row;
    return nullptr;
  }
  OptionValue get(std::string_view name, const Options& options) const { return find(name)->get(options); }
  std::string text(std::string_view name, const Options& options) const { return to_text(get(name, options)); }

  // Error(usage) if the option does not apply to these options: another option is needed.
  void set(const Row& row, Options& options, const OptionValue& value) const {
    if (row.assign(options, value)) return;
    refuse_unmet(row, row.required_option.empty() ? "" : text(row.required_option, options));
  }

  // Error(usage) for the first value that is not accepted.
  void check(const Options& options) const {
    for (const Row& row : rows_) {
      const OptionValue value = row.get(options);
      if (!std::holds_alternative<std::monostate>(value) && !is_accepted(row.accepts, value)) refuse_value(row, value);
    }
  }

 private:
  std::string group_;
  std::vector<Row> rows_;
};

}  // namespace dp
