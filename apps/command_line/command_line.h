// The command line of the programs: options from tables and TOML files, errors as dp::Error, a page of all options.
#pragma once

#include <dp/option_table.h>
#include <dp/run_options.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace command_line {

// Adds an option. Parsing passes its value to `store`. `initial`: the default in --help, unless the option has a text.
CLI::Option& add_option(CLI::App& app, const dp::OptionText& option, const dp::OptionValue& initial,
                        std::function<void(const dp::OptionValue&)> store);

// A validator with the option table's ranges and messages, for options outside a table.
CLI::Validator accepts(const dp::Accepts& accepts);

// False after printing --help or --version. dp::Error(usage) for an invalid command line: an unknown option, a value
// that is not accepted, an option given twice, "--option=" without a value. `elsewhere`: answers to options
// of other programs, by name, such as {"--device", "did you mean --gpus?"}.
bool parse(CLI::App& app, int argc, const char* const* argv, const std::map<std::string, std::string>& elsewhere = {});

// The options of a program and its subcommands, as a page in Markdown.
std::string reference_page(const CLI::App& app);

using Values = std::map<std::string, dp::OptionValue>;  // options by name

// Adds the rows of `table`, or those in `names`, to `app`. Parsing stores the given ones in `given`. --help shows the
// values in `defaults`. `table` and `given` must outlive `app`.
template <typename Options>
void add_options(CLI::App& app, const dp::OptionTable<Options>& table, const Options& defaults, Values& given,
                 const std::vector<std::string_view>& names = {}) {
  const auto wanted = [&](const std::string& name) {
    return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const dp::Option<Options>& row : table.rows())
    if (wanted(row.name))
      add_option(app, row, row.get(defaults),
                 [&given, &row](const dp::OptionValue& value) { given[row.name] = value; });
  for (const dp::Option<Options>& row : table.rows())
    for (const std::string& other : row.excludes)
      if (wanted(row.name) && wanted(other)) app.get_option("--" + row.name)->excludes("--" + other);
}

// Sets these options, in the table's order. dp::Error(usage) for an option that does not apply.
template <typename Options>
void set_options(const dp::OptionTable<Options>& table, const Values& values, Options& options) {
  for (const dp::Option<Options>& row : table.rows())
    if (const auto value = values.find(row.name); value != values.end()) table.set(row, options, value->second);
}

// The option that was probably meant.

// Returns the name that needs the fewest typing corrections to become the given word. If all names differ too much,
// returns the shortest option that contains the words of the given one: "--model-ema" for "--ema". If no option
// contains them, returns an empty text.
std::string closest(const std::string& word, const std::vector<std::string>& names);

// "; did you mean NAME?", or empty.
std::string suggestion(const std::string& word, const std::vector<std::string>& names);

// Options from a TOML file.

// The options at the top of the file; the table [resolved] is ignored. dp::Error(usage) if the file cannot be read,
// is nested deeply, or holds another table or a value of an unsupported type.
std::vector<dp::RecordedOption> read_config_file(const std::string& path);

}  // namespace command_line
