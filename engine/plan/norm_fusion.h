// Finds batch normalisations that may be fused partly into adjacent convolutions (the NormConv2d ops of kernels/ops.h).
#pragma once

#include <vector>

#include "engine/plan/fusion.h"

namespace dp::engine {

// Node indices; -1: no node.
struct NormNeighbours {
  // Of a normalisation: the convolution, without bias and ReLU, whose result only this normalisation reads.
  int moments = -1;
  // Of a normalisation: the convolution whose data gradient is the last summand of its output gradient. There are at
  // most two summands.
  int gradient = -1;
  // Of a normalisation with ReLU and without addend: its `gradient`, if that is its only reader and has neither bias
  // nor ReLU.
  int reader = -1;
  int normalizes = -1;  // of a convolution: the normalisation whose `moments` it is
  int folds = -1;       // of a convolution without ReLU: the normalisation that alone reads its result
};

// Returns the neighbours of every node. `adjacent`: only nodes that are consecutive in node order, so that the
// statistics of all replicas are gathered in the same order as without fusion.
std::vector<NormNeighbours> norm_neighbours(const std::vector<Node>& nodes, bool adjacent);

}  // namespace dp::engine
