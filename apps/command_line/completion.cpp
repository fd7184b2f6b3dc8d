#include "command_line/completion.h"

#include <algorithm>
#include <functional>

namespace command_line {
namespace {

// Options that --help shows; hidden ones have no group.
std::vector<const CLI::Option*> shown_options(const CLI::App& app) {
  std::vector<const CLI::Option*> options;
  for (const CLI::Option* const option : app.get_options())
    if (!option->get_group().empty()) options.push_back(option);
  return options;
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

const std::vector<std::string>* choices_of(const CLI::Option& option, const Choices& choices) {
  for (const std::string& name : option.get_lnames())
    if (const auto at = choices.find(name); at != choices.end() && !at->second.empty()) return &at->second;
  return nullptr;
}

// The choices for an argument of a subcommand: the entry "fetch dataset" if there is one, otherwise "dataset".
const std::vector<std::string>* choices_of_argument(const CLI::App& command, const CLI::Option& option,
                                                    const Choices& choices) {
  for (const std::string& name : {command.get_name() + " " + option.get_name(true), option.get_name(true)})
    if (const auto at = choices.find(name); at != choices.end()) return &at->second;
  return nullptr;
}

// In single quotes of a shell.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::vector<std::string> subcommands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* const command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

// A pattern of a `case`, and the words that may follow this command of the program.
std::string bash_case(const CLI::App& command, const Choices& choices) {
  std::vector<std::string> options, values;
  for (const CLI::Option* const option : shown_options(command)) {
    const std::vector<std::string> names = names_of(*option);
    options.insert(options.end(), names.begin(), names.end());
    const auto* const of_argument = choices_of_argument(command, *option, choices);
    if (names.empty() && of_argument != nullptr) values = *of_argument;
  }
  return "    " + command.get_name() + ") words=" + quoted(joined(values, " ")) +
         (command.get_fallthrough() ? "" : " options=" + quoted(joined(options, " "))) + "; break ;;\n";
}

std::string bash(const CLI::App& app, const Choices& choices) {
  std::vector<std::string> options;
  std::string of_options, of_commands;
  for (const CLI::Option* const option : shown_options(app)) {
    const std::vector<std::string> names = names_of(*option);
    options.insert(options.end(), names.begin(), names.end());
    if (!takes_value(*option)) continue;
    const auto* const values = choices_of(*option, choices);
    // Without choices: a file name, from `complete -o default`.
    of_options += "    " + joined(names, "|") + ") " +
                  (values ? "COMPREPLY=($(compgen -W " + quoted(joined(*values, " ")) + " -- \"$word\")); " : "") +
                  "return ;;\n";
  }
  const std::string all = joined(options, " "), function = "_" + app.get_name();
  for (const CLI::App* const command : app.get_subcommands({})) of_commands += bash_case(*command, choices);
  return "# Completion of " + app.get_name() + " for bash: source this file.\n" + function + "() {\n" +
         "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command\n" +
         "  local options=" + quoted(all) + "\n  local words=" + quoted(joined(subcommands_of(app), " ")) + "\n" +
         "  COMPREPLY=()\n  [[ $word != = ]] || word=\n  [[ $before != = ]] || before=${COMP_WORDS[COMP_CWORD - 2]}\n" +
         "  case $before in\n" + of_options + "  esac\n" +
         "  for command in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do case $command in\n" + of_commands +
         "  esac; done\n" +
         "  [[ $word != -* ]] || words=$options\n  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}\n" +
         "complete -o default -F " + function + " " + app.get_name() + "\n";
}

// With [, ] and : escaped, which have a meaning in a specification of _arguments.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '[' || c == ']' || c == ':' ? std::string("\\") + c : std::string(1, c);
  return out;
}

std::string zsh(const CLI::App& app, const Choices& choices) {
  std::string specifications;
  for (const CLI::Option* const option : shown_options(app))
    for (const std::string& name : names_of(*option)) {
      const auto* const values = choices_of(*option, choices);
      const std::string value = !takes_value(*option) ? ""
                                : values              ? ":value:(" + joined(*values, " ") + ")"
                                                      : ":value:_files";
      specifications += " \\\n  " + quoted("*" + name + "[" + zsh_text(option->get_description()) + "]" + value);
    }
  const std::string name = app.get_name(), function = "_" + name;
  // A file in $fpath is the function itself; a sourced file registers it.
  return "#compdef " + name + "\n" + function + "() {\n  _arguments -s" + specifications + " \\\n  " +
         quoted("1:command:(" + joined(subcommands_of(app), " ") + ")") + " \\\n  '*:file:_files'\n}\n" +
         "if [[ $funcstack[1] == " + function + " ]]; then " + function + " \"$@\"; else compdef " + function + " " +
         name + "; fi\n";
}

// One line for each option of `app`, and for each argument that has choices.
std::string fish_options(const CLI::App& app, const Choices& choices, const std::string& command) {
  std::string script;
  for (const CLI::Option* const option : shown_options(app)) {
    const auto* const of_argument = choices_of_argument(app, *option, choices);
    if (names_of(*option).empty() && of_argument == nullptr) continue;
    script += command;
    for (const std::string& name : option->get_snames()) script += " -s " + name;
    for (const std::string& name : option->get_lnames()) script += " -l " + name;
    const auto* const values = names_of(*option).empty() ? of_argument : choices_of(*option, choices);
    if (values)
      script += " -xa " + quoted(joined(*values, " "));
    else if (takes_value(*option))
      script += " -r";
    script += " -d " + quoted(option->get_description()) + "\n";
  }
  return script;
}

std::string fish(const CLI::App& app, const Choices& choices) {
  std::string script = "# Completion of " + app.get_name() + " for fish.\n", alone;
  const std::string command = "complete -c " + app.get_name();
  for (const CLI::App* const sub : app.get_subcommands({})) {
    script +=
        command + " -n __fish_use_subcommand -a " + sub->get_name() + " -d " + quoted(sub->get_description()) + "\n";
    if (sub->get_fallthrough()) continue;
    alone += (alone.empty() ? "" : " ") + sub->get_name();
    script += fish_options(*sub, choices, command + " -n '__fish_seen_subcommand_from " + sub->get_name() + "'");
  }
  return script + fish_options(app, choices, command + " -n 'not __fish_seen_subcommand_from " + alone + "'");
}

// A backslash, a dash, and a period or quote at the beginning of a line have a meaning in troff.
std::string troff(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\\' ? std::string("\\e") : c == '-' ? std::string("\\-") : std::string(1, c);
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string manual_options(const CLI::App& app) {
  std::string text, group;
  for (const CLI::Option* const option : shown_options(app)) {
    if (option->get_group() != group) text += ".SS " + troff(group = option->get_group()) + "\n";
    std::vector<std::string> names = names_of(*option);
    if (names.empty()) names.push_back(option->get_name());
    const std::string type = option->get_type_name();
    text += ".TP\n.B " + troff(joined(names, ", ")) + (type.empty() ? "" : " \\fI" + type + "\\fR") + "\n" +
            troff(option->get_description()) + "\n";
  }
  return text;
}

}  // namespace

std::string completion(const CLI::App& app, const Choices& choices, const std::string& shell) {
  if (shell == "zsh") return zsh(app, choices);
  return shell == "fish" ? fish(app, choices) : bash(app, choices);
}

std::string manual_page(const CLI::App& app, const std::string& version) {
  std::string title = app.get_name();
  std::transform(title.begin(), title.end(), title.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string page = ".TH " + title + " 1 \"\" \"" + app.get_name() + " " + version + "\"\n.SH NAME\n" +
                     troff(app.get_name()) + " \\- " + troff(app.get_description()) + "\n.SH SYNOPSIS\n.B " +
                     troff(app.get_name()) + "\n[\\fIcommand\\fR] [\\fIoptions\\fR]\n.SH OPTIONS\n" +
                     manual_options(app) + ".SH COMMANDS\n";
  for (const CLI::App* const command : app.get_subcommands({}))
    page += ".SS " + troff(command->get_name()) + "\n" + troff(command->get_description()) + "\n" +
            manual_options(*command);
  return page + ".SH EXIT STATUS\n" + troff(app.get_footer()) + "\n";
}

}  // namespace command_line
