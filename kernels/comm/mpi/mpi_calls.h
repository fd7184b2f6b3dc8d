// Throws Error(device) if an MPI call fails.
#pragma once

#include <mpi.h>

#include <string>

#include "dp/error.h"

namespace dp::kernels::mpi {

inline void check(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw Error(ErrorCode::device, std::string(call) + " failed: " + std::string(text, static_cast<std::size_t>(length)) +
                                     "; see MPI's output");
}

}  // namespace dp::kernels::mpi
