// The gradients of a random graph, computed in several ways.
#pragma once

#include <cstdint>

#include "support/training.h"

namespace dp::test {

// The largest errors over the tensors of a graph, relative to the tensor's norm, or to a thousandth of the whole gradient's.
struct GraphErrors {
  Worst differences;   // float64 gradients against difference quotients of the float64 loss
  Worst fused;         // fused plans against plain ones, in float64: the same bits
  Worst sync;          // replicas that synchronise their statistics against one, in float64
  Worst single;        // the device's float32 against float64
  Worst single_fused;  // fused plans against plain ones there, whose convolutions may have other layouts
  int draws = 0;       // of images, until the loss was smooth around the weights

  void take(const GraphErrors& other);
};

// Of random_graph(seed), checked. Fails the test where no images of many give a smooth loss.
GraphErrors check_gradients(std::uint64_t seed, const DataParallelOptions& device = on_cpus(1));

}  // namespace dp::test
