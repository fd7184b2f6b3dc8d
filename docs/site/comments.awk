# A filter for Doxygen, which reads only /// and ///<. It changes the comments of a header that begin with // and leaves
# all line numbers as they are:
# - a block at the top of the file describes the file, a block above a declaration describes that declaration;
# - lines of a block that are indented by three spaces or more are code;
# - a comment behind a declaration, and the lines below that continue it in the same column, describe that declaration.
# Comments within functions, section lines (// ---) and blocks above an empty line stay.

{ line[NR] = $0 }

# Characters with a meaning for Doxygen, outside of `code`.
function escaped(text,   parts, n, i, out) {
  n = split(text, parts, "`")
  for (i = 1; i <= n; ++i) {
    if (i % 2) gsub(/[\\@<>#*&%|~"]/, "\\\\&", parts[i])
    out = out (i > 1 ? "`" : "") parts[i]
  }
  return out
}

# Tracks braces, so that bodies[depth] is true within functions and initialisers.
function scan(code,   i, c, string, opener) {
  opener = code
  for (i = 1; i <= length(code); ++i) {
    c = substr(code, i, 1)
    if (string) {
      if (c == "\\") ++i
      else if (c == string) string = ""
    } else if (c == "\"" || c == "'" && substr(code, i - 1, 1) !~ /[0-9]/) {
      string = c
    } else if (c == "{") {
      ++depth
      bodies[depth] = bodies[depth - 1] || opener !~ /^ *(template <.*> *)?(struct|class|enum|union|namespace|extern "C")( |$)/
    } else if (c == "}") {
      --depth
    }
  }
}

function is_comment(i) { return line[i] ~ /^ *\/\// }

END {
  for (i = 1; i <= NR; ++i) {
    if (is_comment(i)) {
      column = index(line[i], "//")
      if (column == behind) {
        print substr(line[i], 1, column - 1) "///<" escaped(substr(line[i], column + 2))
        continue
      }
      for (last = i; is_comment(last + 1); ++last) {}
      describes = !bodies[depth] && line[last + 1] !~ /^ *(}|public:|private:|$)/ || i == 1
      for (; i <= last; ++i) {
        text = substr(line[i], column + 2)
        if (!describes || text ~ /^ (---|NOLINT)/) print line[i]
        else print substr(line[i], 1, column - 1) "///" (text ~ /^   / ? "    " text : escaped(text))
      }
      --i
      if (line[i + 1] ~ /^#pragma once/) line[i + 1] = "/// \\file"  # ends the block that describes the file
      continue
    }
    behind = 0
    code = line[i]
    at = index(code, "  // ")
    if (at && !bodies[depth] && code !~ /\/\/ (NOLINT|namespace)/) {
      text = escaped(substr(code, at + 4))
      code = substr(code, 1, at - 1)
      behind = at + 2
      if (code ~ /{$/) print "/**" text " */ " code
      else print code "  ///<" text
    } else {
      print code
    }
    sub(/  \/\/.*/, "", code)
    scan(code)
  }
}
