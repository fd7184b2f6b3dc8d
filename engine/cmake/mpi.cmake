# DP_MPI: whether the MPI communicator is built.
option(DP_MPI "Build the MPI communicator; off where there is no MPI" ${PROJECT_IS_TOP_LEVEL})

if(DP_MPI AND DP_SANITIZE STREQUAL "thread")
  message(STATUS "The thread sanitizer does not know what MPI's own threads do: the MPI communicator is left out")
  set(DP_MPI OFF)
endif()
if(DP_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # the C++ bindings that MPI gave up
  find_package(MPI QUIET COMPONENTS CXX)
  if(NOT MPI_CXX_FOUND)
    message(STATUS "No MPI was found: the MPI communicator is left out")
    set(DP_MPI OFF)
  endif()
endif()
