# shellcheck shell=bash
# The summary of a ctest run in the last lines of ./dev test. Sourced by dev.

# test_summary <preset> <ctest's output> <its LastTest.log>: the slowest tests, which tests did not run and why, totals,
# and the last lines that each failed test printed. Every program here reads its whole input: with pipefail, one that
# exits early, such as head, would end the summary.
test_summary() {
  local preset=$1 printed=$2 last=$3
  [[ -e $last ]] && awk -F ': ' '/^[0-9]+\/[0-9]+ Testing: / { name = substr($0, index($0, ": ") + 2) }
    /^Test time = / { print $0 "\t" name }' "$last" | sed 's/^Test time = *//' | sort -rn |
    sed -n "1,10{s/^/$preset: slowest: /; s/\t/  /; p}"
  skip_reasons "$printed" "$last" | sed "s/^/$preset: not run: /"
  printf '%s: %s, %s skipped\n' "$preset" "$(grep -E '^[0-9]+% tests passed' "$printed" || echo "no test ran")" \
    "$(grep -c '\*\*\*Skipped' "$printed")"
  sed -n '/^The following tests FAILED:/,/^Errors while/s/^[[:space:]]*\([0-9]* - .*\)/\1/p' "$printed" | sed "s/^/$preset: failed: /"
  last_words "$last" | sed "s/^/$preset: /"
}

# last_words <LastTest.log>: the last 12 lines that are not empty of each of the first five failed tests.
last_words() {
  [[ -e $1 ]] || return 0
  awk '
    /^[0-9]+\/[0-9]+ Testing: / { name = substr($0, index($0, ": ") + 2); reading = 0 }
    /^Output:$/ && !reading { reading = 1; count = -1; next }
    reading && /^<end of output>$/ { reading = 0 }
    reading && NF && ++count { line[count] = $0 }
    /^Test Failed\.$/ && ++failed <= 5 {
      print "the last lines of " name ":"
      for (i = count > 12 ? count - 11 : 1; i <= count; ++i) print "  " line[i]
    }' "$1"
}

# skip_reasons <ctest's output> <its LastTest.log>: a line for each reason, "3: no chromium is installed". A test's
# reason is the last line of its output that begins with "skipped: ".
skip_reasons() {
  awk '
    FNR == 1 { ++file }
    file == 1 && /^The following tests did not run:/ { listed = 1; next }
    file == 1 && listed && !/^\t/ { listed = 0 }
    file == 1 && listed {
      name = $0
      sub(/^[ \t]*[0-9]+ - /, "", name)
      how = name
      sub(/.* \(/, "", how)
      sub(/\)$/, "", how)
      sub(/ \([^(]*\)$/, "", name)
      reason[name] = how == "Skipped" ? "without a reason: " name : how ": " name
    }
    file == 2 && /^[0-9]+\/[0-9]+ Testing: / { name = substr($0, index($0, ": ") + 2) }
    file == 2 && /^skipped: / && name in reason { reason[name] = substr($0, 10) }
    END {
      for (name in reason) ++count[reason[name]]
      for (why in count) print count[why] ": " why
    }' "$1" "$2" 2>/dev/null | sort -rn
}

# test_outcomes <ctest's output>: a line for each test, its name, a tab and Passed, Failed, Skipped, ..
test_outcomes() {
  sed -nE '/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: /{
    s/^[^:]*: (.*[^ .]) ?\.*(\*\*\*| {3})([A-Z][A-Za-z: ]*[a-z]):? .*/\1\t\3/
    s/ ?\.*(Subprocess|Child) aborted\t/\t/
    p
  }' "$1" | sort
}

# changed_outcomes <file of test_outcomes> ...: the tests whose outcomes differ, with the number of each outcome. A test
# that a file lacks was missing there.
changed_outcomes() {
  awk -F '\t' -v files=$# '
    { ++total[$1]; ++count[$1 FS $2]; if (!seen[$2]++) outcome[++outcomes] = $2 }
    END {
      for (name in total) {
        said = ""
        for (i = 1; i <= outcomes; ++i)
          if (count[name FS outcome[i]]) said = said (said ? ", " : "") count[name FS outcome[i]] " " outcome[i]
        if (total[name] < files) said = said ", " files - total[name] " missing"
        if (said ~ /,/) print name ": " said
      }
    }' "$@" | sort
}
