// The nodes of a plan: the layers of a model, grouped with the layers that one op may compute with them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dp/model.h"
#include "kernels/ops.h"

namespace dp::engine {

// These layers are fused: conv+ReLU, linear+ReLU, group or layer normalisation+ReLU, ReLU+pool+dropout, and batch
// normalisation with the addition and the ReLU that follow it.

enum class NodeKind {
  conv,
  conv_transpose,
  linear,
  norm,
  group_norm,
  add,
  multiply,
  concat,
  slice,
  channel_shuffle,
  reshape,
  max_pool,
  avg_pool,
  resample,
  relu,
  activation,
  prelu,
  softmax,
  dropout,
  drop_channels
};

struct Node {
  NodeKind kind;
  std::string name;                             // names of its layers, "conv1+relu"
  std::vector<int> inputs;                      // nodes, -1: the model's input; the second one of a norm is its addend
  Shape input, output;                          // per sample; a linear node may read (C,H,W)
  std::vector<Shape> parts;                     // concat, multiply: of each input, per sample
  bool relu = false;                            // the node ends with a ReLU; a max_pool node begins with it
  kernels::Window window{};                     // convs, pools
  kernels::Resampling resampling{};             // resample
  std::int64_t groups = 1;                      // convs, channel_shuffle, group_norm (kEachPixel: layer normalisation)
  std::int64_t numbers = 1;                     // prelu: weights
  double eps = 0;                               // group_norm
  std::int64_t first = 0;                       // slice: the first channel
  bool whole_samples = false;                   // drop_channels: all channels of a sample together
  bool adaptive = false;                        // avg_pool: the window depends on the sizes
  std::optional<kernels::DropoutSpec> dropout;  // of a dropout node, or fused into max_pool
  std::optional<Function> function;             // of an activation
  int weight = -1;                              // index in Model::parameters()
  int bias = -1;
  bool tracked = true;  // norm: it has running statistics
  int norm = -1;        // index among the batch normalisations, in node order
  int layer = -1;       // index of the layer that has the parameters
};

// Returns the nodes in topological order; the last one is the output. Omits dropout layers if `dropout` is false.
// Error(usage) if a layer's result is not used.
std::vector<Node> fuse(const Model& model, bool dropout);

// Batch normalisations that may be fused partly into adjacent convolutions (the NormConv2d ops of kernels/fused/op.h).

// Node indices; -1: no node.
struct NormNeighbours {
  // For a normalisation: the convolution before it. The convolution has neither bias nor ReLU, and no other node reads
  // its result.
  int moments = -1;
  // For a normalisation: a convolution that reads its result. The output gradient of the normalisation is a sum of at
  // most two gradients, and the data gradient of this convolution is the last one added.
  int gradient = -1;
  // For a normalisation with ReLU and without addend: the same convolution as `gradient`, if no other node reads the
  // result and the convolution has neither bias nor ReLU.
  int reader = -1;
  int normalizes = -1;  // of a convolution: the normalisation whose `moments` it is
  int folds = -1;       // of a convolution without ReLU: the normalisation that alone reads its result
};

// Returns the neighbours of every node; a normalisation without weights or without running statistics has none.
// `adjacent`: only nodes that are consecutive in node order, so that the statistics of all replicas are gathered in the
// same order as without fusion.
std::vector<NormNeighbours> norm_neighbours(const std::vector<Node>& nodes, bool adjacent);

// The batch normalisations of a model, with the offsets of their running statistics and of the statistics of a batch in
// a replica's arenas for these.

struct Norm {
  std::string name;  // of the layer
  int layer = 0;     // its index in the model
  std::int64_t channels = 0;
  std::int64_t cells = 0;  // height times width
  double eps = 0, momentum = 0;
  std::int64_t mean = 0, variance = 0;  // offsets in the arena of running statistics, in elements
  // Offsets in the moments arena, in bytes, for a batch of one shard. With n shards each is an array of n entries, and
  // the offsets are n times these.
  std::size_t moments = 0;  // forward: 1 + 2C doubles per shard
  std::size_t sums = 0;     // backward: 2C doubles per shard

  std::size_t moments_bytes() const { return static_cast<std::size_t>(1 + 2 * channels) * sizeof(double); }
  std::size_t sums_bytes() const { return static_cast<std::size_t>(2 * channels) * sizeof(double); }
};

class NormTable {
 public:
  explicit NormTable(const Model& model);  // in execution order

  int count() const { return static_cast<int>(norms_.size()); }
  const Norm& norm(int index) const { return norms_[static_cast<std::size_t>(index)]; }
  const Norm* first_on_1x1_images() const;  // which have one value per channel; null if there is none
  std::int64_t running_statistics_size() const { return running_statistics_size_; }  // elements
  std::size_t moments_bytes() const { return moments_bytes_; }  // of the moments arena, per shard of a batch

 private:
  std::vector<Norm> norms_;
  std::int64_t running_statistics_size_ = 0;
  std::size_t moments_bytes_ = 0;
};

}  // namespace dp::engine
