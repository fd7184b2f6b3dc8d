// A communicator whose ranks are processes: its calls travel over a Wire, on a thread of their own.
//
// All collectives of one handle go through one stream, in the one order that all ranks have; sets of handles are
// independent. What a call was given stays valid until the call has passed, the context has failed, or the handle is gone.
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
  void trace(TraceRing* ring) override { thread_.trace(ring); }

 private:
  void enqueue(const CollectiveCall& call, void* data, void* part, std::span<const std::size_t> bytes,
               Stream& stream) override;

  const std::string name_;
  CommunicationThread thread_;
};

}  // namespace dp::kernels
