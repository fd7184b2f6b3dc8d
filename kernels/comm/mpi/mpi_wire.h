// A wire that uses MPI.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>

#include "dp/error.h"
#include "kernels/comm/wire.h"

namespace dp::kernels::mpi {

// Throws Error(device) if an MPI call fails.
inline void check(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw Error(ErrorCode::device, std::string(call) + " failed: " + std::string(text, static_cast<std::size_t>(length)) +
                                     "; see MPI's output");
}

// The communicator "mpi". The MPI library chooses the summation order of its reductions.

// Collective. Uses a duplicate of MPI_COMM_WORLD. Passes at most `most` elements at a time to the library.
//
// A halted call stays pending in the library, which may still write to the call's memory during later calls. End the
// process after a halt.
std::unique_ptr<Wire> make_wire(std::int64_t most);

}  // namespace dp::kernels::mpi
