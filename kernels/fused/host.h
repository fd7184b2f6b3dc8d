// Fused ops of host backends. They run their members in sequence, because fusion gains nothing there.
#pragma once

#include "kernels/device/host/host_context.h"
#include "kernels/fused/members.h"

namespace dp::kernels {

class FusedHostOp final : public HostOp {
 public:
  explicit FusedHostOp(Members<HostOp> members) : members_(std::move(members)) { tensors_ = members_.tensors; }
  std::size_t workspace_bytes() const override { return members_.workspace_bytes(); }
  std::string implementation() const override { return "unfused: " + members_.name; }
  void execute(std::span<void* const> args, void* workspace) override {
    members_.run(args, workspace, [](HostOp& op, std::span<void* const> own, void* rest) { op.execute(own, rest); });
  }

 private:
  Members<HostOp> members_;
};

}  // namespace dp::kernels
