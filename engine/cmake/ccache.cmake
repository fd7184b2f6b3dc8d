# Compiles through ccache if it is installed. -DCMAKE_CXX_COMPILER_LAUNCHER= and -DCMAKE_CUDA_COMPILER_LAUNCHER= disable
# it.
find_program(DP_CCACHE ccache)
mark_as_advanced(DP_CCACHE)
if(DP_CCACHE)
  # SLOPPINESS: without it ccache does not cache files compiled with a precompiled header. With it, ccache does not see
  # that a macro of such a header has changed, so only headers of other libraries are precompiled. BASEDIR and
  # NOHASHDIR: a second clone, or a project that embeds dp, finds what the first build has compiled, if its build
  # folder is equally deep below dp's sources.
  foreach(dp_language CXX CUDA)
    if(NOT DEFINED CMAKE_${dp_language}_COMPILER_LAUNCHER)
      set(CMAKE_${dp_language}_COMPILER_LAUNCHER
          ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
          CCACHE_NOHASHDIR=1 ${DP_CCACHE})
    endif()
  endforeach()
endif()
