// The connections of the communicator "tcp": one between each two ranks, open only to those who know the secret.
//
// Every rank draws a secret and tells it to the others by the rendezvous. The higher rank connects and opens with the lower's
// secret and its own number; the lower answers with the higher's secret. What opens otherwise is closed and not counted.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "kernels/comm/tcp_socket.h"

namespace dp::kernels {

// In rank order, none for the own rank. All ranks call it together. Error(timeout) naming the ranks that did not connect in
// world.timeout_seconds(), Error(device), Aborted.
std::vector<Descriptor> connect_all(Rendezvous& rendezvous, const AbortFlag* abort);

}  // namespace dp::kernels
