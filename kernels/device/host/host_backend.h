// Common base of the backends whose device is the host.
#pragma once

#include "kernels/comm/host_communicator.h"
#include "kernels/comm/wire_communicator.h"
#include "kernels/device/backend.h"

namespace dp::kernels {

class HostBackend : public Backend {
 public:
  DeviceProbe probe() const override { return {1, {}}; }
  std::vector<std::unique_ptr<Communicator>> make_communicators(std::string_view name,
                                                                std::span<Context* const> contexts) override {
    return make_host_communicators(name, contexts);
  }
  CommunicatorChoice default_communicator(std::span<const Device>, bool) const override {
    return {"host", "all replicas are in one process and share its memory"};
  }
  std::unique_ptr<Communicator> join(std::string_view name, Context& context, Rendezvous& rendezvous) override {
    return join_from_host(name, context, rendezvous);
  }
  CommunicatorChoice default_communicator(const Rendezvous& rendezvous) const override {
    return default_for(rendezvous);
  }
  std::unique_ptr<Link> make_link(Context& sender, Context&) override { return std::make_unique<HostLink>(sender); }
  std::string describe() const override { return {}; }
  std::size_t free_memory(Device) const override { return free_host_memory(); }
};

}  // namespace dp::kernels
