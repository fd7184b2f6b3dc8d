#include "command_line/command_line.h"

#include <dp/error.h>
#include <algorithm>
#include <iostream>

#include "command_line/suggestion.h"

namespace command_line {
namespace {

using Kind = dp::Accepts::Kind;
using Count = dp::Accepts::Count;

[[noreturn]] void usage(const std::string& what) { throw dp::Error(dp::ErrorCode::usage, what); }

std::string names_on_command_line(const dp::OptionText& option) {
  return "--" + option.name + (option.spellings.empty() ? "" : ",") + option.spellings;
}

std::string description(const dp::OptionText& option, const dp::OptionValue& initial) {
  const bool none = option.accepts.kind == Kind::flag || std::holds_alternative<std::monostate>(initial);
  const std::string shown = !option.default_text.empty() ? option.default_text : none ? "" : dp::to_text(initial);
  return option.help + (shown.empty() ? "" : " [" + shown + "]");
}

const char* type_name(Kind kind) {
  switch (kind) {
    case Kind::flag: return "";
    case Kind::whole:
    case Kind::seed: return "INT";
    case Kind::number: return "FLOAT";
    case Kind::text: return "TEXT";
  }
  return "";
}

constexpr int kAny = CLI::detail::expected_max_vector_size;

void set_count(CLI::Option& option, Count count) {
  switch (count) {
    case Count::one: option.expected(1)->take_last(); break;  // refuse_repeats() refuses a second one
    case Count::two: option.expected(2)->delimiter(',')->take_all(); break;
    case Count::list: option.expected(1, kAny)->allow_extra_args()->delimiter(',')->take_all(); break;
  }
}

// CLI11 rejects some repeated options and takes the last value of others. This rejects every second value.
void refuse_repeats(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    if (option->get_items_expected_max() <= 1 && option->count() > 1)
      usage(option->get_name() + " is given " + std::to_string(option->count()) + " times; give it once");
  for (const CLI::App* command : app.get_subcommands()) refuse_repeats(*command);
}

void add_long_names(const CLI::App& app, std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames())
      if (!option->get_group().empty()) names.push_back("--" + name);
  for (const CLI::App* command : app.get_subcommands({})) add_long_names(*command, names);
}

// CLI11 would read "-epochs" as several one-letter options.
void refuse_single_dashes(const CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> names;
  add_long_names(app, names);
  for (const std::string& word : words) {
    const std::string name = "-" + word.substr(0, word.find('='));
    const bool single = word.size() > 2 && word[0] == '-' && word[1] != '-';
    if (single && std::ranges::find(names, name) != names.end())
      usage(name.substr(1) + " is not an option; did you mean " + name + "?");
  }
}

// CLI11 would take the next argument as the value of "--option=".
void refuse_missing_values(const std::vector<std::string>& words, const std::string& hint) {
  for (const std::string& word : words)
    if (word.starts_with("--") && word.size() > 3 && word.find('=') == word.size() - 1)
      usage(word.substr(0, word.size() - 1) + ": no value after the '='; " + hint);
}

// The arguments, with dashes instead of underscores in the names of options.
std::vector<std::string> words_of(int argc, const char* const* argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  for (std::string& word : words)
    if (word.starts_with("--")) {
      const auto end = std::find(word.begin(), word.end(), '=');
      std::replace(word.begin(), end, '_', '-');
    }
  return words;
}

// Throws an error about the first unknown word that looks like an option, or else about the first unknown word.
[[noreturn]] void refuse_unknown(const CLI::App& app, std::vector<std::string> words,
                                 const std::map<std::string, std::string>& elsewhere, const std::string& hint) {
  std::vector<std::string> names;
  add_long_names(app, names);
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  if (words.size() > 1) std::erase(words, "--");
  std::ranges::stable_partition(words, [](const std::string& word) { return word.size() > 1 && word[0] == '-'; });
  const std::string name = words.front().substr(0, words.front().find('='));
  if (const auto at = elsewhere.find(name); at != elsewhere.end()) usage(name + " is not an option; " + at->second);
  const bool option = name.starts_with('-'), known = std::ranges::find(names, name) != names.end();
  if (const auto chosen = app.get_subcommands(); option && known && !chosen.empty())
    usage(name + " is not an option of " + chosen.front()->get_name() + "; " + app.get_name() + " " +
          chosen.front()->get_name() + " --help lists those");
  const std::string likely = name.size() > 2 && !known ? suggestion(name, names) : "";
  usage((option ? name + " is not an option" : "'" + name + "' is neither an option nor a command") +
        (known ? " here" : "") + (likely.empty() ? "; " + hint : likely));
}

// Throws an error that describes the first missing argument of a command. Returns if none is missing.
void refuse_missing_argument(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands())
    for (const CLI::Option* option : command->get_options())
      if (option->get_required() && option->count() == 0)
        usage(command->get_name() + " requires " + option->get_description());
}

}  // namespace

CLI::Option& add_option(CLI::App& app, const dp::OptionText& option, const dp::OptionValue& initial,
                        std::function<void(const dp::OptionValue&)> store) {
  const std::string names = names_on_command_line(option), text = description(option, initial);
  CLI::Option* added = nullptr;
  if (option.accepts.kind == Kind::flag) {
    added = app.add_flag_function(
        names, [store = std::move(store)](std::int64_t count) { store(count > 0); }, text);
    added->check(accepts(dp::accepts::one_of({"true", "false"})));  // also given as --flag=false
  } else {
    const CLI::callback_t read = [name = "--" + option.name, accepted = option.accepts,
                                  store = std::move(store)](const CLI::results_t& texts) {
      try {
        store(dp::parse_option(accepted, texts));
      } catch (const dp::Error& error) {
        throw CLI::ValidationError(name, error.what());
      }
      return true;
    };
    added = app.add_option(names, read, text);
    set_count(*added, option.accepts.count);
    added->type_name(type_name(option.accepts.kind));
  }
  return *added->group(option.group);
}

CLI::Validator accepts(const dp::Accepts& accepts) {
  return CLI::Validator(
      [accepts](std::string& text) -> std::string {
        try {
          const dp::OptionValue value = dp::parse_option(accepts, {text});
          if (accepts.kind == Kind::text) text = dp::to_text(value);  // in the spelling of the option table
          return "";
        } catch (const dp::Error& error) {
          return error.what();
        }
      },
      "");
}

bool parse(CLI::App& app, int argc, const char* const* argv, const std::map<std::string, std::string>& elsewhere) {
  const std::string hint = app.get_name() + " --help lists the options";
  std::vector<std::string> words = words_of(argc, argv);
  refuse_missing_values(words, hint);
  refuse_single_dashes(app, words);
  app.add_flag_callback("--help-page",
                        [&app] {
                          std::cout << reference_page(app);
                          throw CLI::Success();
                        })
      ->group("");  // not in --help; ./dev docs writes the page
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 takes the last word first
    refuse_repeats(app);
  } catch (const CLI::Success& success) {
    app.exit(success);
    return false;
  } catch (const CLI::ExtrasError&) {
    refuse_unknown(app, app.remaining(true), elsewhere, hint);
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what(), name = text.substr(0, text.find(':'));
    usage(text.ends_with(" missing") ? name + " requires a value; " + hint : text + "; " + hint);
  } catch (const CLI::RequiredError& error) {
    if (const auto rest = app.remaining(true); !rest.empty()) refuse_unknown(app, rest, elsewhere, hint);
    refuse_missing_argument(app);
    usage(std::string(error.what()) + "; " + hint);
  } catch (const CLI::ParseError& error) {
    usage(std::string(error.what()) + "; " + hint);
  }
  return true;
}

}  // namespace command_line
