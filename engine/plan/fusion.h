// Groups the layers of a model into fused nodes: conv+ReLU, linear+ReLU, ReLU+pool+dropout, and batch normalisation
// with the addition and the ReLU that follow it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dp/model.h"
#include "kernels/ops.h"

namespace dp::engine {

enum class NodeKind { conv, linear, norm, add, max_pool, avg_pool, relu, activation, dropout };

struct Node {
  NodeKind kind;
  std::string name;                             // names of its layers, "conv1+relu"
  std::vector<int> inputs;                      // nodes, -1: the model's input; the second one of a norm is its addend
  Shape input, output;                          // per sample; a linear node may read (C,H,W)
  bool relu = false;                            // the node ends with a ReLU; a max_pool node begins with it
  kernels::Window window{};                     // conv, pools
  bool global = false;                          // avg_pool: over the whole image
  std::optional<kernels::DropoutSpec> dropout;  // of a dropout node, or fused into max_pool
  std::optional<Function> function;             // of an activation
  int weight = -1;                              // index in Model::parameters()
  int bias = -1;
  int norm = -1;   // index among the batch normalisations, in node order
  int layer = -1;  // index of the layer that has the parameters
};

// Returns the nodes in topological order; the last one is the output. Omits dropout layers if `dropout` is false.
// Error(usage) if a layer's result is not used.
std::vector<Node> fuse(const Model& model, bool dropout);

}  // namespace dp::engine
