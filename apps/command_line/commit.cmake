# Writes OUT, a source file with the commit of SOURCE. Leaves OUT unchanged if the commit is the same.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#include \"apps/command_line/commit.h\"

namespace command_line {

const char* const kCommit = \"${commit}\";

}  // namespace command_line
")
