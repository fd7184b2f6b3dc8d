# Embedded where nobody has said how to optimise (no build type, no -O), dp's own files are compiled as for Release: by
# default CMake says nothing, and the loader would take six times as long. The embedder's files stay as they are.
get_directory_property(dp_options COMPILE_OPTIONS)
foreach(language CXX CUDA)
  if(NOT "${CMAKE_${language}_FLAGS};${dp_options}" MATCHES "(^|[ ;])-O")
    target_compile_options(dp_flags INTERFACE "$<$<AND:$<CONFIG:>,$<COMPILE_LANGUAGE:${language}>>:-O3;-DNDEBUG>")
  endif()
endforeach()
