// Contexts and ops of backends that use host memory.
#pragma once

#include "kernels/device/backend.h"
#include "kernels/device/host/host_stream.h"
#include "kernels/device/host/memory.h"

namespace dp::kernels {

// An op of a backend whose device memory is host memory.
class HostOp : public Op {
 public:
  // Runs the op on the stream's thread and returns when it is done. Allocates nothing.
  virtual void execute(std::span<void* const> args, void* workspace) = 0;

  void run(Stream& stream, std::span<void* const> args,
           void* workspace) final;  // enqueues execute(); defined in host_stream.cpp
  const std::vector<TensorDesc>& tensors() const override { return tensors_; }
  std::string implementation() const override { return "plain"; }
  // Whether this is a slow substitute, so that another layout may have a faster op.
  virtual bool is_fallback() const { return false; }

 protected:
  std::vector<TensorDesc> tensors_;  // set by the derived class's constructor
};

// Common base of the contexts of host backends. Derived classes add ops, types and layouts.
class HostContext : public Context {
 public:
  // Error(usage) if options.threads < 1, or if options.cores is neither empty nor one core per thread.
  HostContext(Device device, const ContextOptions& options);

  Device device() const override { return device_; }
  bool host_accessible() const override { return !options_.discrete_memory; }
  void bind_thread() override;
  bool fuses(const OpDesc&) const override { return options_.norm_fusion == NormFusion::always; }
  NormFusion norm_fusion() const override {
    return options_.norm_fusion == NormFusion::always ? NormFusion::always : NormFusion::never;
  }
  std::unique_ptr<Buffer> allocate(std::size_t bytes) override;
  std::unique_ptr<Buffer> allocate_for_peers(std::size_t bytes) override;
  // Destroy streams before their context.
  std::unique_ptr<Stream> make_stream(StreamUse use = StreamUse::work) override;
  std::unique_ptr<Event> make_event() override;
  void flush() override;
  bool idle() override;
  StreamProgress stream_progress() const override { return group_.stream_progress(); }
  LabelSeconds take_seconds() override { return inline_streams_.take_seconds(); }

  const ContextOptions& options() const { return options_; }
  StreamGroup& group() { return group_; }

 private:
  Device device_;
  ContextOptions options_;
  StackReserve stacks_;
  std::uint64_t id_;  // unique in the process, never reused
  std::uint64_t streams_made_ = 0;
  StreamGroup group_;
  InlineStreams inline_streams_;
};

}  // namespace dp::kernels
