# add_subdirectory(dp) builds the CUDA plugin by default if a toolkit is installed. Configures, and checks the build's
# dry run. Usage: cmake -DPROJECT= -DWORK= -DDP_SOURCE= -DOPTIONS= -P
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${WORK})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${PROJECT} -B ${WORK} -DDP_SOURCE_DIR=${DP_SOURCE} ${OPTIONS} OUTPUT_VARIABLE configured
                COMMAND_ERROR_IS_FATAL ANY)
set(dry_run -n)
if("Ninja" IN_LIST OPTIONS)
  set(dry_run -t commands)  # ninja -n stops after the check for new files
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK} -- ${dry_run} OUTPUT_VARIABLE steps COMMAND_ERROR_IS_FATAL ANY)
file(READ ${WORK}/plugin.txt plugin)
if(configured MATCHES "the CUDA backend is not built")
  message(STATUS "no toolkit: ${CMAKE_MATCH_0}")
elseif(NOT plugin STREQUAL "${WORK}/dp/apps/dp_train/libdp_cuda.so" OR NOT steps MATCHES "libdp_cuda\\.so")
  message(FATAL_ERROR "the default build does not make the plugin; dp::cuda_plugin is '${plugin}': ${configured}")
endif()
