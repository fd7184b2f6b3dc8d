# Checks the optimisation flags of dp's and the embedder's files for several settings of the embedder, and the other
# flags of the embedder. Configures, and reads the compile commands. Usage: cmake -DPROJECT= -DWORK= -DDP_SOURCE=
# -DOPTIONS= -P
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/check_embedder.cmake)
file(REMOVE_RECURSE ${WORK})

function(expect_levels of_dp of_embedder)  # the optimisation flag of each, "" for none; then options of CMake
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${PROJECT} -B ${WORK} -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DDP_SOURCE_DIR=${DP_SOURCE}
                          ${OPTIONS} ${ARGN} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(STRINGS ${WORK}/compile_commands.json commands REGEX "\"command\": ")
  set(ours 0)
  foreach(command IN LISTS commands)
    string(REGEX MATCHALL " -O[0-9a-z]*" level "${command}")
    if(command MATCHES "/main\\.cpp[ \"]")
      set(wanted "${of_embedder}")
    else()
      set(wanted "${of_dp}")
      math(EXPR ours "${ours} + 1")
    endif()
    string(STRIP "${level}" level)
    if(NOT level STREQUAL wanted)
      message(FATAL_ERROR "with '${ARGN}' optimised by '${level}', not '${wanted}': ${command}")
    endif()
  endforeach()
  if(ours LESS 100)
    message(FATAL_ERROR "only ${ours} files of dp's are compiled")
  endif()
endfunction()

set(no_flags -DCMAKE_CXX_FLAGS= -DCMAKE_CUDA_FLAGS=)
expect_levels("-O3" "" -DCMAKE_BUILD_TYPE= ${no_flags})
expect_levels("" "" -DCMAKE_BUILD_TYPE=Debug ${no_flags})
expect_levels("-O1" "-O1" -DCMAKE_BUILD_TYPE= -DCMAKE_CXX_FLAGS=-O1 -DCMAKE_CUDA_FLAGS=-O1)
expect_levels("-O3" "-O3" -DCMAKE_BUILD_TYPE=Release ${no_flags})
check_embedder(${WORK} ${PROJECT}/main.cpp ${DP_SOURCE}/engine/include)
