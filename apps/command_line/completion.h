// Completion of a program's options in shells, and its manual page.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

namespace command_line {

using Choices = std::map<std::string, std::vector<std::string>>;  // the words that an option accepts, by its name

// A script for "bash", "zsh" or "fish".
std::string completion(const CLI::App& app, const Choices& choices, const std::string& shell);

// A page for man(1), in troff.
std::string manual_page(const CLI::App& app, const std::string& version);

}  // namespace command_line
