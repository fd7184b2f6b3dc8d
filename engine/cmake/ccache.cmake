# Compiles through ccache where it is installed. Say -DCMAKE_CXX_COMPILER_LAUNCHER= to turn it off.
if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(DP_CCACHE ccache)
  mark_as_advanced(DP_CCACHE)
  if(DP_CCACHE)
    # Without these it keeps nothing that was compiled with a precompiled header.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${DP_CCACHE})
  endif()
endif()
