// The command line of the programs: options from tables, errors as dp::Error, a page of all options.
#pragma once

#include <dp/option_table.h>
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
// that is not accepted, an option given twice, "--option=" without a value.
bool parse(CLI::App& app, int argc, const char* const* argv);

// The options of a program and its subcommands, as a page in Markdown.
std::string reference_page(const CLI::App& app);

// The options of a table that a command line gives.
template <typename Options>
class Given {
 public:
  // `table` and `app` must outlive this object. `defaults`: --help shows their values. `names`: the options to add;
  // empty: all.
  Given(CLI::App& app, const dp::OptionTable<Options>& table, const Options& defaults,
        const std::vector<std::string_view>& names = {})
      : table_(&table) {
    for (const dp::Option<Options>& row : table.rows())
      if (names.empty() || std::find(names.begin(), names.end(), row.name) != names.end())
        add_option(app, row, row.get(defaults),
                   [this, &row](const dp::OptionValue& value) { values_[row.name] = value; });
    for (const dp::Option<Options>& row : table.rows())
      for (const std::string& other : row.excludes) app.get_option("--" + row.name)->excludes("--" + other);
  }
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;

  // Null if the option is not given.
  const dp::OptionValue* find(const std::string& name) const {
    const auto at = values_.find(name);
    return at == values_.end() ? nullptr : &at->second;
  }

  // Sets one option, if it is given.
  void apply(const std::string& name, Options& options) const {
    if (const dp::OptionValue* const value = find(name)) table_->set(*table_->find(name), options, *value);
  }

  // Sets all given options, in the table's order. dp::Error(usage) for an option that does not apply.
  void apply(Options& options) const {
    for (const dp::Option<Options>& row : table_->rows()) apply(row.name, options);
  }

 private:
  const dp::OptionTable<Options>* table_;
  std::map<std::string, dp::OptionValue> values_;
};

}  // namespace command_line
