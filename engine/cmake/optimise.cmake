# If the project sets neither a build type nor -O, dp's own files are compiled with Release options: the unoptimised
# loader is six times slower. The project's own files keep their flags.
get_directory_property(dp_options COMPILE_OPTIONS)
foreach(language CXX CUDA)
  if(NOT "${CMAKE_${language}_FLAGS};${dp_options}" MATCHES "(^|[ ;])-O")
    target_compile_options(dp_flags INTERFACE "$<$<AND:$<CONFIG:>,$<COMPILE_LANGUAGE:${language}>>:-O3;-DNDEBUG>")
  endif()
endforeach()
