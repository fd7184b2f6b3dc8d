// A communicator between processes. A Wire carries its calls, on a communication thread.
//
// All collectives of one handle use one stream, in the same order on all ranks; sets of handles are independent. The
// memory passed to a call must stay valid until the call is done, the context has failed, or the handle is destroyed.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "kernels/comm/communication_thread.h"
#include "kernels/comm/host_collectives.h"
#include "kernels/host/host_context.h"

namespace dp::kernels {

class WireCommunicator final : public HostCollectives {
 public:
  WireCommunicator(std::unique_ptr<Wire> wire, HostContext& context);

  std::string name() const override { return name_; }

 private:
  void enqueue(const CollectiveCall& call, void* data, void* part, std::span<const std::size_t> bytes,
               Stream& stream) override;

  const std::string name_;
  CommunicationThread thread_;
};

}  // namespace dp::kernels
