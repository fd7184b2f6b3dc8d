#include "command_line/command_line.h"

#include <dp/error.h>
#include <toml++/toml.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numeric>
#include <set>
#include <sstream>
#include <string_view>

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
        usage(command->get_name() + " requires " + (option->get_lnames().empty() ? "" : option->get_name() + ", ") +
              option->get_description());
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

namespace {

// The number of characters to insert, remove or replace; two swapped neighbours count as one (Damerau-Levenshtein).
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last), std::swap(last, now);
  }
  return last[b.size()];
}

std::set<std::string> parts_of(const std::string& name) {
  std::set<std::string> parts;
  std::istringstream text(name);
  for (std::string part; std::getline(text, part, '-');)
    if (!part.empty()) parts.insert(part);
  return parts;
}

// Words that other programs put before the name of an option.
const std::set<std::string> kFillers{"enable", "max",   "n",        "num",  "number",
                                     "total",  "train", "training", "type", "use"};

// Compares the words of an option with those of an unknown one. True if the option contains all of them ("--model-ema"
// for "--ema"), or if the unknown one only adds fillers ("--max-epochs" for "--epochs").
bool has_words_of(const std::set<std::string>& option, const std::set<std::string>& word) {
  if (option.contains("no") != word.contains("no")) return false;
  if (std::ranges::includes(option, word)) return true;
  return std::ranges::all_of(
             word, [&](const std::string& part) { return option.contains(part) || kFillers.contains(part); }) &&
         std::ranges::includes(word, option);
}

}  // namespace

std::string closest(const std::string& word, const std::vector<std::string>& names) {
  std::string best;
  const std::size_t letters = word.size() - std::min(word.find_first_not_of('-'), word.size());
  std::size_t least = std::max<std::size_t>(1, letters / 4) + 1;
  for (const std::string& name : names) {
    if (word.starts_with("--no-") != name.starts_with("--no-") && word.starts_with("--")) continue;  // the opposite
    const bool longer_form = word.size() >= 3 && name.starts_with(word);  // --label for --label-smoothing
    const std::size_t changes = longer_form ? 1 : distance(word, name);
    if (changes < least) least = changes, best = name;
  }
  if (!best.empty() || !word.starts_with("--")) return best;
  std::size_t fewest = 0;  // number of words of `best`
  for (const std::string& name : names) {
    const std::set<std::string> parts = parts_of(name);
    if (has_words_of(parts, parts_of(word)) && (fewest == 0 || parts.size() < fewest))
      fewest = parts.size(), best = name;
  }
  return best;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& names) {
  const std::string name = closest(word, names);
  return name.empty() ? "" : "; did you mean " + name + "?";
}

namespace {

std::string escaped(std::string text) {
  for (std::size_t at = 0; (at = text.find_first_of("|<*_", at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

std::string meaning(const CLI::Option& option) {
  const std::string initial = option.get_default_str();
  return option.get_description() + (initial.empty() ? "" : " [" + initial + "]");
}

std::string names_cell(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : option.get_snames()) names += (names.empty() ? "`-" : ", `-") + name + "`";
  for (const std::string& name : option.get_lnames()) names += (names.empty() ? "`--" : ", `--") + name + "`";
  return names.empty() ? "`" + option.get_name() + "`" : names;  // an argument without dashes
}

// Hidden options have no group.
std::vector<std::string> groups_of(const CLI::App& app) {
  std::vector<std::string> groups;
  for (const CLI::Option* option : app.get_options())
    if (!option->get_group().empty() && std::find(groups.begin(), groups.end(), option->get_group()) == groups.end())
      groups.push_back(option->get_group());
  return groups;
}

std::string tables(const CLI::App& app, const std::string& heading) {
  std::string page;
  for (const std::string& group : groups_of(app)) {
    page += "\n" + heading + " " + group + "\n\n| option | value | meaning |\n|---|---|---|\n";
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_group() != group) continue;
      const std::string type = option->get_type_name();
      page += "| " + names_cell(*option) + " | " + escaped(type) + (option->get_items_expected_max() > 1 ? " …" : "") +
              " | " + escaped(meaning(*option)) + " |\n";
    }
  }
  return page;
}

}  // namespace

std::string reference_page(const CLI::App& app) {
  std::string page = "# Options of `" + app.get_name() + "`\n\n" + app.get_description() + "\n\n" +
                     "Written by `./dev docs` from the program's own table of options. In brackets: the default.\n" +
                     tables(app, "##");
  for (const CLI::App* command : app.get_subcommands({}))
    page += "\n## `" + app.get_name() + " " + command->get_name() + "`\n\n" + command->get_description() + "\n" +
            tables(*command, "###");
  return page;
}

namespace {

constexpr std::uintmax_t kLongest = 1 << 20;  // bytes
constexpr int kMostLevels = 8;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw dp::Error(dp::ErrorCode::usage, "--config '" + path + "': " + why);
}

// The text that a command line would give; empty for what no option takes.
std::optional<std::string> text_of(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return text;
  if (const auto on = node.value_exact<bool>()) return *on ? "true" : "false";
  if (const auto whole = node.value_exact<std::int64_t>()) return std::to_string(*whole);
  if (const auto number = node.value_exact<double>()) return dp::to_text(dp::OptionValue{*number});
  return std::nullopt;
}

dp::RecordedOption read_option(const std::string& path, const std::string& name, const toml::node& node) {
  dp::RecordedOption option{name, {}};
  const auto add = [&](const toml::node& one) {
    const std::optional<std::string> text = text_of(one);
    if (!text) refuse(path, name + " must be a string, number, boolean or list of these");
    option.texts.push_back(*text);
  };
  if (const toml::array* const list = node.as_array())
    for (const toml::node& one : *list) add(one);
  else
    add(node);
  return option;
}

// The position after the string that begins at `at`. Past the end if it does not end, which the parser refuses.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string_view three = quote == '"' ? R"(""")" : "'''";
  const bool long_one = text.substr(at).starts_with(three);
  for (at += long_one ? 3 : 1; at < text.size(); ++at) {
    if (text[at] == '\\' && quote == '"') {
      ++at;
    } else if (long_one && text.substr(at).starts_with(three)) {
      at += 3;
      for (int more = 0; more < 2 && at < text.size() && text[at] == quote; ++more) ++at;  // they belong to the string
      return at;
    } else if (!long_one && text[at] == quote) {
      return at + 1;
    } else if (!long_one && text[at] == '\n') {
      break;
    }
  }
  return text.size();
}

// toml++ makes a table for each part of a dotted key and destroys them by recursion. So keys and brackets are counted
// before it reads them.
void refuse_deep(const std::string& path, std::string_view text) {
  int line = 1, parts = 1, brackets = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      const std::size_t end = end_of_string(text, at);
      line += static_cast<int>(std::ranges::count(text.substr(at, end - at), '\n'));
      at = end;
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (c == '.') ++parts;
    if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) parts = 1;
    if (c == '[' || c == '{') ++brackets;
    if ((c == ']' || c == '}') && brackets > 0) --brackets;
    if (parts > kMostLevels || brackets > kMostLevels)
      refuse(path, "line " + std::to_string(line) + ": more than " + std::to_string(kMostLevels) +
                       " levels of tables or lists; options have none, such as: lr = 0.1");
    if (c == '\n') ++line;
    ++at;
  }
}

std::string text_of_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) refuse(path, "not a file; give one that --save-config wrote");
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size > kLongest)
    refuse(path, "has " + std::to_string(size) + " bytes; a file of options has at most " + std::to_string(kLongest));
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) refuse(path, "cannot be read; check its permissions");
  return text.str();
}

}  // namespace

std::vector<dp::RecordedOption> read_config_file(const std::string& path) try {
  const std::string text = text_of_file(path);
  refuse_deep(path, text);
  std::vector<dp::RecordedOption> options;
  for (const auto& [key, node] : toml::parse(text))
    if (!node.is_table())
      options.push_back(read_option(path, std::string(key.str()), node));
    else if (key.str() != "resolved" && key.str() != "data")
      refuse(path, "[" + std::string(key.str()) +
                       "] is a table, but options must not be in tables; move its options to the top of the file");
  return options;
} catch (const toml::parse_error& error) {
  refuse(path, "line " + std::to_string(error.source().begin.line) + ": " + std::string(error.description()));
}

}  // namespace command_line
