# The environment and run() for scripts that run dp_train on simulated GPUs, without this machine's GPU libraries.
# FOLDER: the folder of the simulated plugin, probe and driver.
if(DEFINED ENV{LD_LIBRARY_PATH})  # oneDNN may come from there
  set(ENV{LD_LIBRARY_PATH} "${FOLDER}:$ENV{LD_LIBRARY_PATH}")
else()
  set(ENV{LD_LIBRARY_PATH} ${FOLDER})
endif()
set(ENV{DP_PLUGIN_PATH} ${FOLDER})
set(ENV{DP_NCCL_LIBRARY} /nonexistent)
set(ENV{DP_CUDNN_LIBRARY} /nonexistent)
set(ENV{DP_CUBLASLT_LIBRARY} /nonexistent)
set(ENV{DP_SIMULATED_PEERS} all)
set(ENV{XDG_CACHE_HOME} ${FOLDER}/dp_train_cache)

function(run output)
  execute_process(COMMAND ${PROGRAM} ${ARGN} OUTPUT_VARIABLE text ERROR_VARIABLE errors RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "dp_train ${ARGN}: exit status ${status}: ${text}${errors}")
  endif()
  set(${output} "${text}" PARENT_SCOPE)
endfunction()
