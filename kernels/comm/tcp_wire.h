// The communicator "tcp": its ranks are connected by network sockets only.
#pragma once

#include <memory>

#include "kernels/comm/wire.h"

namespace dp::kernels {

// Collective over all ranks of the process group. Throws as connect_all() does.
std::unique_ptr<Wire> make_tcp_wire(Rendezvous& rendezvous, const AbortFlag* abort);

}  // namespace dp::kernels
