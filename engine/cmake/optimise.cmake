# Embedded where nobody has said how to optimise (no build type, no -O), dp's own files are compiled as for Release: by
# default CMake says nothing, and the loader would take six times as long. The embedder's files stay as they are.
get_directory_property(dp_options COMPILE_OPTIONS)
if(NOT "${CMAKE_CXX_FLAGS};${dp_options}" MATCHES "(^|[ ;])-O")
  separate_arguments(dp_release UNIX_COMMAND "${CMAKE_CXX_FLAGS_RELEASE}")
  target_compile_options(dp_flags INTERFACE "$<$<AND:$<CONFIG:>,$<COMPILE_LANGUAGE:CXX>>:${dp_release}>"
                                            "$<$<AND:$<CONFIG:>,$<COMPILE_LANGUAGE:CUDA>>:-O3;-DNDEBUG>")
endif()
