// Cuts a model into the stages of a pipeline.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "dp/model.h"

namespace dp::engine {

// A place where a model can be cut: exactly one tensor crosses it. The next stage begins with this layer or block.
struct Cut {
  std::string name;  // "layer2.0", "fc"
  int layer = 0;     // the first layer of the next stage, an index of Model::layers()
  int crossing = 0;  // the layer whose output crosses
  Shape shape;       // of that output, per sample
};

// All places, in forward order. A stage begins with a convolution or a linear layer (and the flattening before it).
std::vector<Cut> possible_cuts(const Model& model);

// What the layers between two neighbouring places cost.
struct PieceCost {
  double seconds = 0;     // per micro-batch, forward and backward
  std::size_t bytes = 0;  // of device memory
};

// The cuts (indices of `cuts`, ascending) of `stages` stages whose slowest one is as fast as possible; of equal
// choices, the one with the least data to hand over. pieces: one more than cuts. A stage has at most `device_bytes`.
// Error(usage) if there are too few cuts; the message lists them. Error(device) if the stages do not fit.
std::vector<int> balanced_cuts(std::span<const Cut> cuts, std::span<const PieceCost> pieces, int stages,
                               std::size_t device_bytes);

// The cuts with these names, which must be in forward order. Error(usage) for another name lists the names.
std::vector<int> cuts_named(std::span<const Cut> cuts, std::span<const std::string> names);

// The stages as models. Layers, parameters and buffers have the names, shapes and initial distributions of the whole
// model, and the same masks in dropout layers.
std::vector<Model> split(const Model& model, std::span<const Cut> cuts);

}  // namespace dp::engine
