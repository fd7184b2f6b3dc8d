// Gradients of a random graph, computed by several implementations and compared.
#pragma once

#include <cstdint>

#include "support/training.h"

namespace dp::test {

// The largest errors over the tensors of a graph, relative to the larger of the tensor's norm and a thousandth of the
// whole gradient's norm.
struct GraphErrors {
  Worst differences;   // float64 gradients against difference quotients of the float64 loss
  Worst fused;         // fused against unfused plans in float64; must be bit-equal
  Worst sync;          // replicas with sync batch norm against one replica, in float64
  Worst single;        // the device's float32 against float64
  Worst single_fused;  // fused against unfused plans on the device; convolution layouts may differ
  int draws = 0;       // batches drawn until the loss was smooth around the weights

  void take(const GraphErrors& other);
};

// Checks random_graph(seed). Fails the test if no batch out of 100 gives a smooth loss.
GraphErrors check_gradients(std::uint64_t seed, const DataParallelOptions& device = on_cpus(1));

}  // namespace dp::test
