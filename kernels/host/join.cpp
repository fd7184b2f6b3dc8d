#include "kernels/host/join.h"

#include <string>

namespace dp::kernels {

std::unique_ptr<Communicator> join_from_host(std::string_view name, Context& context, Rendezvous&) {
  throw Error(ErrorCode::usage, "communicator '" + std::string(name) + "' does not join processes on " +
                                    to_string(context.device()));
}

}  // namespace dp::kernels
