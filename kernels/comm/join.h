// Communicators between processes, for replicas on the host.
#pragma once

#include <memory>
#include <string_view>

#include "kernels/device/backend.h"

namespace dp::kernels {

// Backend::default_communicator and Backend::join, for contexts of host backends.
CommunicatorChoice default_for(const Rendezvous& rendezvous);
std::unique_ptr<Communicator> join_from_host(std::string_view name, Context& context, Rendezvous& rendezvous);

}  // namespace dp::kernels
