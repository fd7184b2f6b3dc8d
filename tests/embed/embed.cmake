# Copies a project out of the tree, builds it against dp and runs it. Usage: cmake -D... -P, with
#   PROJECT                the project's folder
#   WORK                   a folder for the copy, which is recreated
#   FOLDER                 the build folder, which is recreated; WORK/build if not given
#   DP_PREFIX or DP_SOURCE where find_package(dp) or add_subdirectory finds dp
#   OPTIONS                options of the outer CMake that decide how dp is compiled
#   BEFORE                 a command of an installed program, to be run first
#   WITH                   the arguments of the program, if it does not call dp::train_main()
#   RUNS                   command lines of a program that calls dp::train_main(), separated by |
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/check_embedder.cmake)
cmake_path(GET PROJECT FILENAME name)
if(NOT FOLDER)
  set(FOLDER ${WORK}/build)
endif()
file(REMOVE_RECURSE ${WORK} ${FOLDER})
file(COPY ${PROJECT}/ DESTINATION ${WORK}/source)

if(DP_PREFIX)
  set(where -DCMAKE_PREFIX_PATH=${DP_PREFIX})
  set(public_include ${DP_PREFIX}/include)
else()
  set(where -DDP_SOURCE_DIR=${DP_SOURCE})
  set(public_include ${DP_SOURCE}/engine/include)
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -S ${WORK}/source -B ${FOLDER} -DCMAKE_EXPORT_COMPILE_COMMANDS=ON ${where} ${OPTIONS}
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${FOLDER} -j 2 COMMAND_ERROR_IS_FATAL ANY)

check_embedder(${FOLDER} ${WORK}/source/main.cpp ${public_include})

if(EXISTS ${FOLDER}/build.ninja)
  file(STRINGS ${FOLDER}/build.ninja lines)
  set(own "")
  foreach(line IN LISTS lines)
    if(line MATCHES "^build ")
      string(REGEX MATCH "^build ${name}:" own "${line}")
    elseif(own AND line MATCHES "LINK_FLAGS = .*-z,")
      message(FATAL_ERROR "a link option of dp's reached its embedder: ${line}")
    endif()
  endforeach()
endif()

if(BEFORE)
  separate_arguments(before UNIX_COMMAND "${DP_PREFIX}/bin/${BEFORE}")
  execute_process(COMMAND ${before} WORKING_DIRECTORY ${WORK} COMMAND_ERROR_IS_FATAL ANY)
endif()
if(NOT RUNS)
  set(RUNS " ${WITH}")
else()
  execute_process(COMMAND ${FOLDER}/${name} --no-such-option RESULT_VARIABLE code ERROR_VARIABLE error)
  if(NOT code EQUAL 2 OR NOT error MATCHES "^${name}: error: --no-such-option")
    message(FATAL_ERROR "a wrong option ended with ${code}: ${error}")
  endif()
endif()
string(REPLACE "|" ";" runs "${RUNS}")
foreach(run IN LISTS runs)
  separate_arguments(arguments UNIX_COMMAND "${run}")
  execute_process(COMMAND ${FOLDER}/${name} ${arguments} WORKING_DIRECTORY ${WORK} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
