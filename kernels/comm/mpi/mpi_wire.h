// The communicator "mpi": calls of the MPI library, which sums in an order of its own.
#pragma once

#include <mpi.h>

#include <memory>

#include "kernels/comm/wire.h"

namespace dp::kernels::mpi {

// On a duplicate of MPI_COMM_WORLD; all ranks make it together. The library is asked for at most `most` elements at a time.
//
// A call that was halted stays unfinished in the library, which may still write to its memory while another call goes on: end
// the process then.
std::unique_ptr<Wire> make_wire(std::int64_t most);

}  // namespace dp::kernels::mpi
