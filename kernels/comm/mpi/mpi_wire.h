// The communicator "mpi". The MPI library chooses the summation order of its reductions.
#pragma once

#include <mpi.h>

#include <memory>

#include "kernels/comm/wire.h"

namespace dp::kernels::mpi {

// Collective. Uses a duplicate of MPI_COMM_WORLD. Passes at most `most` elements at a time to the library.
//
// A halted call stays pending in the library, which may still write to the call's memory during later calls. End the
// process after a halt.
std::unique_ptr<Wire> make_wire(std::int64_t most);

}  // namespace dp::kernels::mpi
