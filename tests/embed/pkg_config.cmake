# A program is built with the flags of pkg-config alone, in two calls of the compiler, and runs. Usage: cmake -P, with
#   PROJECT    the project's folder, of which main.cpp is used
#   WORK       a folder, which is recreated
#   DP_PREFIX  an installation, which is copied to a folder of another name
#   LIBDIR     the folder of libraries in it
#   COMPILER   the compiler
cmake_minimum_required(VERSION 3.25)
find_program(pkg_config pkg-config)
if(NOT pkg_config)
  message("skipped: there is no pkg-config")
  return()
endif()
file(REMOVE_RECURSE ${WORK})
file(COPY ${DP_PREFIX}/ DESTINATION ${WORK}/moved)
set(ENV{PKG_CONFIG_PATH} ${WORK}/moved/${LIBDIR}/pkgconfig)
unset(ENV{DP_PLUGIN_PATH})

function(ask variable)
  execute_process(COMMAND ${pkg_config} ${ARGN} dp OUTPUT_VARIABLE text OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(text UNIX_COMMAND "${text}")
  set(${variable} ${text} PARENT_SCOPE)
endfunction()
ask(compile --cflags)
ask(link --libs)
execute_process(COMMAND ${COMPILER} -std=c++20 ${compile} -c ${PROJECT}/main.cpp -o ${WORK}/main.o COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${COMPILER} ${WORK}/main.o ${link} -o ${WORK}/main COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/main COMMAND_ERROR_IS_FATAL ANY)
# Where the program searches for plugins.
execute_process(COMMAND readelf -d ${WORK}/main OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "path: \\[([^\n]*)/lib/dp\\]" found "${dynamic}")
if(NOT EXISTS "${CMAKE_MATCH_1}/include/dp/dp.h")
  message(FATAL_ERROR "the run path does not name the plugins' folder: ${dynamic}")
endif()
