// An op of a backend whose device memory is host memory.
#pragma once

#include "kernels/backend.h"

namespace dp::kernels {

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

}  // namespace dp::kernels
