// An op of a backend whose device memory is host memory: a function of its arguments.
#pragma once

#include "kernels/backend.h"

namespace dp::kernels {

class HostOp : public Op {
 public:
  // Does the work before it returns, on the thread that runs the stream. Allocates nothing.
  virtual void execute(std::span<void* const> args, void* workspace) = 0;

  void run(Stream& stream, std::span<void* const> args,
           void* workspace) final;  // enqueues execute(); in host_stream.cpp
  const std::vector<TensorDesc>& tensors() const override { return tensors_; }
  std::string implementation() const override { return "plain"; }

 protected:
  std::vector<TensorDesc> tensors_;  // set by the constructor
};

}  // namespace dp::kernels
