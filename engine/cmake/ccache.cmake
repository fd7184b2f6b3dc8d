# Compiles through ccache where it is installed. Say -DCMAKE_CXX_COMPILER_LAUNCHER= to turn it off.
if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(DP_CCACHE ccache)
  mark_as_advanced(DP_CCACHE)
  if(DP_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${DP_CCACHE})
  endif()
endif()
