// Fused ops of host backends. They run their members in sequence, because fusion gains nothing there.
#pragma once

#include "kernels/device/host/host_context.h"
#include "kernels/fused/fused_layers.h"

namespace dp::kernels {

class FusedHostOp final : public HostOp {
 public:
  // make(descriptor) returns a std::unique_ptr<HostOp>.
  template <FusedConvolution Desc, typename Make>
  FusedHostOp(const Desc& desc, const Make& make) {
    std::unique_ptr<HostOp> convolution = make(convolution_of(desc));
    tensors_ = convolution->tensors();
    name_ = "unfused: " + convolution->implementation();
    steps_ = fused_steps(desc, std::move(convolution), make);
  }
  template <FusedLayer Desc, typename Make>
  FusedHostOp(const Desc& desc, const Make& make) {
    LayerSteps<HostOp> layer = layer_steps(desc, make);
    tensors_ = std::move(layer.tensors);
    name_ = "unfused: " + layer.name;
    steps_ = std::move(layer.steps);
  }
  std::size_t workspace_bytes() const override { return steps_.workspace_bytes(); }
  std::string implementation() const override { return name_; }
  void execute(std::span<void* const> args, void* workspace) override {
    steps_.run(args, workspace, [](HostOp& op, std::span<void* const> own, void* rest) { op.execute(own, rest); });
  }

 private:
  std::string name_;
  FusedSteps<HostOp> steps_;
};

}  // namespace dp::kernels
