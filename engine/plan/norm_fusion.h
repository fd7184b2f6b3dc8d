// Which batch normalisations may run in part within the convolutions beside them (kernels::NormConv2dForward and its like).
#pragma once

#include <vector>

#include "engine/plan/fusion.h"

namespace dp::engine {

// Nodes; -1: none.
struct NormNeighbours {
  int moments =
      -1;  // of a normalisation: the convolution that makes what it normalises, for it alone; without bias and ReLU
  int gradient =
      -1;  // ...: the convolution whose data gradient is the last part of its result's gradient, of at most two parts
  int reader =
      -1;  // ...: that one, where it is the only reader, has no bias, and the normalisation only has a ReLU behind it
  int normalizes = -1;  // of a convolution: the normalisation whose `moments` it is
};

// Of every node. `adjacent`: only between neighbours in the order of nodes, so that all replicas' statistics are gathered in the
// order in which they are without fusion.
std::vector<NormNeighbours> norm_neighbours(const std::vector<Node>& nodes, bool adjacent);

}  // namespace dp::engine
