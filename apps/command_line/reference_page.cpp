#include <algorithm>

#include "command_line/command_line.h"

namespace command_line {
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

}  // namespace command_line
