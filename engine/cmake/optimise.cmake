# In a project without a build type and without -O, dp's own files are compiled as for Release; unoptimised, the loader
# takes six times as long. The project's own files keep their flags.
get_directory_property(dp_options COMPILE_OPTIONS)
foreach(language CXX CUDA)
  if(NOT "${CMAKE_${language}_FLAGS};${dp_options}" MATCHES "(^|[ ;])-O")
    target_compile_options(dp_flags INTERFACE "$<$<AND:$<CONFIG:>,$<COMPILE_LANGUAGE:${language}>>:-O3;-DNDEBUG>")
  endif()
endforeach()
