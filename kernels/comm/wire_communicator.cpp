#include "kernels/comm/wire_communicator.h"

#include <algorithm>

namespace dp::kernels {

WireCommunicator::WireCommunicator(std::unique_ptr<Wire> wire, HostContext& context)
    : HostCollectives(wire->rank(), wire->size()), name_(wire->name()), thread_(std::move(wire), context.group()) {}

void WireCommunicator::enqueue(const CollectiveCall& call, void* data, void* part, std::span<const std::size_t> bytes,
                               Stream& stream) {
  WireJob& job = thread_.next();
  job.call = call;
  job.data = data;
  job.part = part;
  job.stride = stride_;
  std::copy(bytes.begin(), bytes.end(), job.bytes.begin());
  thread_.enqueue(static_cast<HostStream&>(stream));
}

}  // namespace dp::kernels
