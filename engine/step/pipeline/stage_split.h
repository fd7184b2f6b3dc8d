// Splits a model into the stages of a pipeline.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "dp/model.h"

namespace dp::engine {

// A point at which a model can be split: the layers behind it read only one tensor of the layers before it.
struct Cut {
  std::string name;  // of the next stage's first block or layer: "layer2.0", "fc"
  int layer = 0;     // the next stage's first layer, an index of Model::layers()
  int crossing = 0;  // the layer whose output the next stage reads
  Shape shape;       // of that output, per sample
};

// All cuts of a model, in forward order. A stage begins with a convolution, with a linear layer, or with the Flatten
// before a linear layer.
std::vector<Cut> possible_cuts(const Model& model);

// The cost of the layers between two neighbouring cuts.
struct PieceCost {
  double seconds = 0;     // per micro-batch, forward and backward
  std::size_t bytes = 0;  // of device memory
};

// Selects stages - 1 of the cuts; returns their indices, ascending. Minimises the time of the slowest stage and, among
// equal selections, the size of the transferred tensors. A stage has at most `device_bytes`. `pieces` has one entry
// more than `cuts`. Error(usage) if there are too few cuts; the message lists them. Error(device) if no selection fits.
std::vector<int> balanced_cuts(std::span<const Cut> cuts, std::span<const PieceCost> pieces, int stages,
                               std::size_t device_bytes);

// The indices of the cuts with these names. Error(usage) if the names are not in forward order, or for an unknown name;
// the message lists the valid ones.
std::vector<int> cuts_named(std::span<const Cut> cuts, std::span<const std::string> names);

// The stages as models. Names, shapes, initial distributions and dropout masks are those of the whole model.
std::vector<Model> split(const Model& model, std::span<const Cut> cuts);

}  // namespace dp::engine
