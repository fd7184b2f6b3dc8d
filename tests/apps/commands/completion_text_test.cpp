// The whole text of each script and of the manual page, for a small program. completion_test.cpp runs those of dp_train
// in the shells that are installed.
#include "command_line/completion.h"

#include "support/catch.h"

namespace {

const command_line::Choices kChoices{
    {"shape", {"round", "flat"}}, {"size", {}}, {"kind", {"green"}}, {"pour kind", {"herbal", "black"}}};

// A program with options in two groups, a hidden one, and three subcommands. One takes the options of the program.
class Tea {
 public:
  Tea() {
    app.set_help_flag();
    app.footer(".0 ok-ish");
    app.add_option("-s,--size,--big", text_, "size: 1 [cup]")->group("What");
    app.add_flag_callback(
           "--milk", [] {}, "with 'milk'")
        ->group("What");
    app.add_flag_callback(
           "--secret", [] {}, "hidden")
        ->group("");
    app.add_option("--shape", text_, "its shape")->group("Look");
    app.add_subcommand("serve", "serve it, hot")->fallthrough();
    CLI::App* const pour = app.add_subcommand("pour", "pour a cup");
    pour->add_option("kind", text_, "which tea")->group("Arguments");
    pour->add_option("cup", text_, "any cup")->group("Arguments");
    pour->add_option("-o,--out", text_, "a \\file")->group("Other");
    app.add_subcommand("wash", "'wash' up");
  }

  CLI::App app{"Makes tea.", "tea"};

 private:
  std::string text_;
};

TEST_CASE("completion: the whole script for bash") {
  const Tea tea;
  CHECK(command_line::completion(tea.app, kChoices, "bash") == R"(# Completion of tea for bash: source this file.
_tea() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command
  local options='-s --size --big --milk --shape'
  local words='serve pour wash'
  COMPREPLY=()
  [[ $word != = ]] || word=
  [[ $before != = ]] || before=${COMP_WORDS[COMP_CWORD - 2]}
  case $before in
    -s|--size|--big) return ;;
    --shape) COMPREPLY=($(compgen -W 'round flat' -- "$word")); return ;;
  esac
  for command in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do case $command in
    serve) words=''; break ;;
    pour) words='herbal black' options='-o --out'; break ;;
    wash) words='' options=''; break ;;
  esac; done
  [[ $word != -* ]] || words=$options
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _tea tea
)");
}

TEST_CASE("completion: the whole script for zsh") {
  const Tea tea;
  CHECK(command_line::completion(tea.app, kChoices, "zsh") == R"(#compdef tea
_tea() {
  _arguments -s \
  '*-s[size\: 1 \[cup\]]:value:_files' \
  '*--size[size\: 1 \[cup\]]:value:_files' \
  '*--big[size\: 1 \[cup\]]:value:_files' \
  '*--milk[with '\''milk'\'']' \
  '*--shape[its shape]:value:(round flat)' \
  '1:command:(serve pour wash)' \
  '*:file:_files'
}
if [[ $funcstack[1] == _tea ]]; then _tea "$@"; else compdef _tea tea; fi
)");
}

TEST_CASE("completion: the whole script for fish") {
  const Tea tea;
  CHECK(command_line::completion(tea.app, kChoices, "fish") == R"(# Completion of tea for fish.
complete -c tea -n __fish_use_subcommand -a serve -d 'serve it, hot'
complete -c tea -n __fish_use_subcommand -a pour -d 'pour a cup'
complete -c tea -n '__fish_seen_subcommand_from pour' -xa 'herbal black' -d 'which tea'
complete -c tea -n '__fish_seen_subcommand_from pour' -s o -l out -r -d 'a \file'
complete -c tea -n __fish_use_subcommand -a wash -d ''\''wash'\'' up'
complete -c tea -n 'not __fish_seen_subcommand_from pour wash' -s s -l size -l big -r -d 'size: 1 [cup]'
complete -c tea -n 'not __fish_seen_subcommand_from pour wash' -l milk -d 'with '\''milk'\'''
complete -c tea -n 'not __fish_seen_subcommand_from pour wash' -l shape -xa 'round flat' -d 'its shape'
)");
}

TEST_CASE("completion: the whole manual page") {
  const Tea tea;
  CHECK(command_line::manual_page(tea.app, "1.2") == R"(.TH TEA 1 "" "tea 1.2"
.SH NAME
tea \- Makes tea.
.SH SYNOPSIS
.B tea
[\fIcommand\fR] [\fIoptions\fR]
.SH OPTIONS
.SS What
.TP
.B \-s, \-\-size, \-\-big \fITEXT\fR
size: 1 [cup]
.TP
.B \-\-milk
with 'milk'
.SS Look
.TP
.B \-\-shape \fITEXT\fR
its shape
.SH COMMANDS
.SS serve
serve it, hot
.SS pour
pour a cup
.SS Arguments
.TP
.B kind \fITEXT\fR
which tea
.TP
.B cup \fITEXT\fR
any cup
.SS Other
.TP
.B \-o, \-\-out \fITEXT\fR
a \efile
.SS wash
\&'wash' up
.SH EXIT STATUS
\&.0 ok\-ish
)");
}

}  // namespace
