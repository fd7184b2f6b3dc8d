// Groups the layers of a model into the nodes that run as one op: conv+ReLU, linear+ReLU, ReLU+pool+dropout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dp/model.h"
#include "kernels/ops.h"

namespace dp::engine {

enum class NodeKind { conv, linear, pool, relu, dropout };

// One node of the chain. Its input is the node before it; the first one reads the model's input.
struct Node {
  NodeKind kind;
  std::string name;                             // the layers it holds, "conv1+relu"
  Shape input, output;                          // per sample; a linear node may read (C,H,W)
  bool relu = false;                            // folded into conv, linear or pool
  kernels::Window window{};                     // conv, pool
  std::optional<kernels::DropoutSpec> dropout;  // dropout, or folded into pool
  int weight = -1;                              // index in Model::parameters()
  int bias = -1;
};

// Error(usage) for a model that is not a chain. Dropout layers vanish when `dropout` is false.
std::vector<Node> fuse(const Model& model, bool dropout);

}  // namespace dp::engine
