# Compiles through ccache if it is installed. -DCMAKE_CXX_COMPILER_LAUNCHER= disables it.
if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(DP_CCACHE ccache)
  mark_as_advanced(DP_CCACHE)
  if(DP_CCACHE)
    # SLOPPINESS: without it ccache does not cache files compiled with a precompiled header. BASEDIR and NOHASHDIR: a
    # second clone finds what the first has compiled.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
        CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${DP_CCACHE})
  endif()
endif()
