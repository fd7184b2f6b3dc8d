// A CPU op with memory for its arguments, executed without a stream.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dp/tensor.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/step_state.h"

namespace dp::test {

struct CpuCase {
  std::string name;
  std::unique_ptr<kernels::HostOp> op;
  std::vector<Tensor> memory;        // of each argument; equal descriptors have equal random contents
  std::vector<std::size_t> outputs;  // arguments that the op writes
  bool exact = true;                 // its results do not depend on the number of threads

  void run();
  std::vector<void*> args;
  Tensor workspace;
};

// Every op on small shapes, in the layouts that the ops choose. oneDNN's ops use blocked layouts.
std::vector<CpuCase> every_cpu_op(int threads);

}  // namespace dp::test
