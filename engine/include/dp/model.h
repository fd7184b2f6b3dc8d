// A network as written: named layers in a graph, sizes per sample. It knows nothing of devices, batches
// or memory layouts; those belong to the plan.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "dp/shape.h"

namespace dp {

// Layer parameters, with PyTorch's names and defaults.
struct Conv2d {
  std::int64_t out_channels = 0;
  int kernel = 3;
  int stride = 1;
  int padding = 0;
  bool bias = true;
};
struct Linear {
  std::int64_t out_features = 0;
  bool bias = true;
};
struct Relu {};
struct MaxPool2d {
  int kernel = 2;
  int stride = 2;
  int padding = 0;
};
struct Dropout {
  float p = 0.5f;  // probability of dropping an element; the rest is scaled by 1/(1-p)
};
struct Flatten {};  // (C,H,W) -> (C*H*W), in C,H,W order whatever the layout inside
struct Input {};

using LayerKind = std::variant<Input, Conv2d, Linear, Relu, MaxPool2d, Dropout, Flatten>;

struct Layer {
  std::string name;  // PyTorch's module path, "layer1.0.conv1"
  LayerKind kind;
  std::vector<int> inputs;  // indices of earlier layers
  Shape output;             // per sample, without the batch dimension
};

struct ParameterSpec {
  std::string name;  // "conv1.weight"
  Shape shape;       // PyTorch's: conv (O,I,kH,kW), linear (O,I), bias (O)
  int layer = 0;
  float init_bound = 0;  // initial values are uniform in [-init_bound, init_bound]
};

class Model {
 public:
  const std::string& name() const { return name_; }
  const std::vector<Layer>& layers() const { return layers_; }  // layers()[0] is the input; the last is the output
  const Shape& input() const { return layers_.front().output; }
  const Shape& output() const { return layers_.back().output; }
  // In forward order; gradients become ready from the back to the front.
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  std::int64_t parameter_count() const;

 private:
  friend class ModelBuilder;
  std::string name_;
  std::vector<Layer> layers_;
  std::vector<ParameterSpec> parameters_;
};

// Writes a model down layer by layer. Every method takes the layer's PyTorch name and the node it reads,
// and throws Error(usage) naming the layer when shapes do not fit, a size is not positive, or a name repeats.
class ModelBuilder {
 public:
  struct Node {
    int index = -1;
  };

  ModelBuilder(std::string name, const Shape& input);  // input per sample: (C,H,W) or (features)

  Node input() const { return {0}; }
  Node conv2d(const std::string& name, Node x, const Conv2d& options);
  Node linear(const std::string& name, Node x, const Linear& options);  // x: (features)
  Node relu(Node x);
  Node max_pool2d(Node x, const MaxPool2d& options = {});
  Node dropout(const std::string& name, Node x, float p);
  Node flatten(Node x);
  Model build(Node output);  // the output must be the node added last; the builder is spent

 private:
  Node add(std::string name, LayerKind kind, Node x, const Shape& output);
  const Shape& shape_of(Node x, const std::string& reader) const;
  Model model_;
};

}  // namespace dp
