// The largest tensors that a stage sends to its neighbours and receives from them, and the memory that the links need
// for them.
#pragma once

#include <algorithm>

#include "engine/plan/plan.h"
#include "kernels/comm/communicator.h"

namespace dp::engine {

struct HandedOver {                        // bytes
  std::size_t output = 0, input_grad = 0;  // sent
  std::size_t input = 0, output_grad = 0;  // received

  static HandedOver of(const Plan& plan) {
    HandedOver bytes;
    const bool first = !plan.options().input, last = plan.options().last, training = plan.options().training;
    if (!last) bytes.output = plan.output().desc.layout.bytes;
    if (!first && training) bytes.input_grad = plan.input_grad().desc.layout.bytes;
    if (!first) bytes.input = plan.input().desc.layout.bytes;
    if (!last && training) bytes.output_grad = plan.output_grad().desc.layout.bytes;
    return bytes;
  }
  void grow(const HandedOver& other) {
    output = std::max(output, other.output);
    input_grad = std::max(input_grad, other.input_grad);
    input = std::max(input, other.input);
    output_grad = std::max(output_grad, other.output_grad);
  }
  // Bytes of the links on the stage's device. `two_queues`: Backend::links_have_two_queues().
  std::size_t in_links(bool two_queues) const {
    return kernels::Link::kSlots * (output + input_grad + (two_queues ? input + output_grad : 0));
  }
};

}  // namespace dp::engine
