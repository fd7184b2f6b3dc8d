# Hardening of our own programs, libraries and plugins (docs/decisions/0055-hardened-programs.md). Options of folders,
# not of dp_flags, so that they reach every target of this project and none of a project that embeds it.
option(DP_HARDEN "Compile and link with protections against exploits" ON)
if(NOT DP_HARDEN)
  return()
endif()
set(dp_hardening -fstack-protector-strong)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|i.86)$")
  list(APPEND dp_hardening -fcf-protection=full)
endif()
# The CUDA compiler takes them for code of the host. Its own front end cannot parse the checks of _FORTIFY_SOURCE, and
# device code cannot call those of libstdc++.
list(JOIN dp_hardening "," dp_host_hardening)
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${dp_hardening}>" "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${dp_host_hardening}>")
add_compile_definitions($<$<COMPILE_LANGUAGE:CXX>:_GLIBCXX_ASSERTIONS>)
# It needs optimisation, and hides accesses from the address sanitizer. Some compilers define a lower level.
if(NOT DP_SANITIZE AND NOT CMAKE_CXX_FLAGS MATCHES "-O0")
  add_compile_options("$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=3>")
endif()
add_link_options(LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)
