// Groups the layers of a model into the nodes that run as one: conv+ReLU, linear+ReLU, ReLU+pool+dropout, and the batch
// normalisation with the addition and the ReLU behind it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dp/model.h"
#include "kernels/ops.h"

namespace dp::engine {

enum class NodeKind { conv, linear, norm, add, max_pool, avg_pool, relu, dropout };

struct Node {
  NodeKind kind;
  std::string name;                             // the layers it holds, "conv1+relu"
  std::vector<int> inputs;                      // nodes, -1: the model's input; a norm's second is its addend
  Shape input, output;                          // per sample; a linear node may read (C,H,W)
  bool relu = false;                            // folded in
  kernels::Window window{};                     // conv, pools
  bool global = false;                          // avg_pool: over the whole image
  std::optional<kernels::DropoutSpec> dropout;  // dropout, or folded into max_pool
  int weight = -1;                              // index in Model::parameters()
  int bias = -1;
  int norm = -1;   // of the batch normalisations, counted in order of nodes
  int layer = -1;  // of the layer that has the parameters
};

// In an order in which every node comes after its inputs; the last one is the output. Error(usage) for a model with a layer
// that nothing reads. Dropout layers vanish when `dropout` is false.
std::vector<Node> fuse(const Model& model, bool dropout);

}  // namespace dp::engine
