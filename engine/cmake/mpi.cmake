# DP_MPI: whether the MPI communicator is built.
option(DP_MPI "Build the MPI communicator, if MPI is found" ${PROJECT_IS_TOP_LEVEL})

if(DP_MPI AND DP_SANITIZE STREQUAL "thread")
  message(STATUS "The thread sanitizer reports false races in MPI's own threads: the MPI communicator is not built")
  set(DP_MPI OFF)
endif()
if(DP_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # MPI's C++ bindings, which were removed
  find_package(MPI QUIET COMPONENTS CXX)
  if(NOT MPI_CXX_FOUND)
    message(STATUS "No MPI was found: the MPI communicator is not built")
    set(DP_MPI OFF)
  endif()
endif()
