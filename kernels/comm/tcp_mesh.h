// The connections of the communicator "tcp": one per pair of ranks, authenticated by secrets.
//
// Every rank draws a random secret and publishes it through the rendezvous. The higher rank connects and sends its rank
// number and the lower rank's secret. The lower rank answers with its rank number and the higher rank's secret. Any
// other connection is closed and ignored.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "kernels/comm/tcp_socket.h"

namespace dp::kernels {

// Collective. Returns the connections in rank order; the entry of the own rank is empty. Throws Error(timeout) with the
// missing ranks after rendezvous.timeout_seconds(), Error(device) if a connection fails, or Aborted.
std::vector<Descriptor> connect_all(Rendezvous& rendezvous, const AbortFlag* abort);

}  // namespace dp::kernels
