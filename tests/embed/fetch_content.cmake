# FetchContent clones the last commit, and its dp::dp gives the program what add_subdirectory gives it. Configures, and
# compiles the program's own file; the rest of the build is only listed. Usage: cmake -DPROJECT= -DWORK= -DDP_SOURCE=
# -DOPTIONS= -P
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/check_embedder.cmake)
find_program(git git)
if(git)
  execute_process(COMMAND ${git} -C ${DP_SOURCE} rev-parse HEAD OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT commit OR NOT "Ninja" IN_LIST OPTIONS)
  message("skipped: this needs git, a clone of dp and Ninja")
  return()
endif()
file(REMOVE_RECURSE ${WORK})
file(COPY ${PROJECT}/ DESTINATION ${WORK}/source)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${WORK}/source -B ${WORK}/build -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
                        -DDP_REPOSITORY=file://${DP_SOURCE} -DDP_COMMIT=${commit} -DDP_CUDA=OFF ${OPTIONS} COMMAND_ERROR_IS_FATAL ANY)
check_embedder(${WORK}/build ${WORK}/source/main.cpp ${WORK}/build/_deps/dp-src/engine/include)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/build --target CMakeFiles/wrapper.dir/main.cpp.o COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/build --target wrapper -- -t commands wrapper OUTPUT_VARIABLE steps COMMAND_ERROR_IS_FATAL ANY)
if(NOT steps MATCHES "_deps/dp-build/libdp\\.a[^\n]*\n?$")
  message(FATAL_ERROR "the program is not linked with libdp.a of FetchContent: ${steps}")
endif()
