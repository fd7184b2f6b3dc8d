# Installs BUILD to PREFIX, made anew, and looks for what an embedder and a user need.
file(REMOVE_RECURSE ${PREFIX})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX} COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
foreach(path include/dp/dp.h bin/dp_train bin/dp_bench lib/dp/bench_step lib/dp/pytorch_step.py ${LIBDIR}/libdp.a ${LIBDIR}/cmake/dp/dpConfig.cmake
             ${LIBDIR}/cmake/dp/dpConfigVersion.cmake)
  if(NOT EXISTS ${PREFIX}/${path})
    message(FATAL_ERROR "the installation lacks ${path}")
  endif()
endforeach()
file(GLOB_RECURSE headers RELATIVE ${PREFIX}/include ${PREFIX}/include/*)
list(FILTER headers EXCLUDE REGEX "^dp/[a-z_0-9]+\\.h$")
if(headers)
  message(FATAL_ERROR "the installation has headers that are not public: ${headers}")
endif()
