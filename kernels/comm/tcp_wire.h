// The communicator "tcp": ranks that reach each other by network alone.
#pragma once

#include <memory>

#include "kernels/comm/wire.h"

namespace dp::kernels {

// Connects all ranks of the world, which call it together. Errors as connect_all's.
std::unique_ptr<Wire> make_tcp_wire(Rendezvous& rendezvous, const AbortFlag* abort);

}  // namespace dp::kernels
