// A network: named layers in a graph, with shapes per sample. It is independent of devices, batch sizes and memory
// layouts; the plan adds those.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "dp/functions.h"
#include "dp/shape.h"

namespace dp {

// How a parameter's initial values are drawn.
enum class InitKind {
  uniform,   // in [-value, value]
  normal,    // mean 0, standard deviation value
  constant,  // value
  dirac,     // filter i copies input channel i; filters beyond the number of input channels are uniform
};
struct Init {
  InitKind kind = InitKind::uniform;
  float value = 0;
};

// Initial weights of a convolution. PyTorch's default also sets the bias. With the other values the bias is zero:
// kaiming_normal_ for a ReLU, as in torchvision's residual networks (fan_out) and DenseNets (fan_in), or a normal
// distribution with a standard deviation of 0.01 or 0.02, as in its GoogLeNet and its ConvNeXts. dirac: the first
// filters copy the input channels, as torch.nn.init.dirac_ does; the other filters have PyTorch's default.
enum class ConvInit { torch_default, kaiming_normal_fan_out, kaiming_normal_fan_in, normal_001, normal_002, dirac };

// Zeros around an image: so many rows above and below it, and columns left and right.
struct Padding : HW {
  using HW::HW;
  constexpr Padding(const HW& sides) : HW(sides) {}  // NOLINT(google-explicit-constructor)
  bool same = false;                                 // kSamePadding
  HW more_behind = 0;  // rows below and columns right beyond those above and left; set in a Model only
};
// Keeps the size of the image, at a stride of 1, as PyTorch's padding='same'. If an odd number of rows or columns is
// needed, the additional one is below or right.
inline constexpr Padding kSamePadding = [] {
  Padding padding;
  padding.same = true;
  return padding;
}();

// Layer parameters, with PyTorch's names and defaults.
struct Conv2d {
  std::int64_t out_channels = 0;
  HW kernel = 3;
  HW stride = 1;
  Padding padding = 0;
  HW dilation = 1;  // distance between the cells of the window
  std::int64_t groups =
      1;  // channels are split into so many convolutions side by side; the number of channels: depthwise
  bool bias = true;
  ConvInit init = ConvInit::torch_default;
  bool torch_bias = false;  // the bias always has PyTorch's default values, whatever `init` is
};
// A transposed convolution: the gradient of a Conv2d with these options by its input. An output side has (input - 1) *
// stride - 2 * padding + dilation * (kernel - 1) + 1 + output_padding cells. Weights: (in, out / groups, kH, kW).
struct ConvTranspose2d {
  std::int64_t out_channels = 0;
  HW kernel = 3;
  HW stride = 1;
  HW padding = 0;
  HW output_padding = 0;  // rows below and columns right; less than the stride
  std::int64_t groups = 1;
  bool bias = true;
  HW dilation = 1;
};
// Normalises each channel by mean and variance over N, H and W: those of the batch in training, the running ones in
// evaluation.
struct BatchNorm2d {
  double eps = 1e-5;
  double momentum = 0.1;            // of the running statistics: r = (1 - momentum) * r + momentum * batch value
  bool affine = true;               // a weight and a bias for each channel
  bool track_running_stats = true;  // false: an evaluation uses the statistics of the samples that a replica evaluates
};
// Splits the channels of each sample into groups of equal size and normalises each group by its mean and variance over
// its channels, H and W, in training and evaluation alike.
struct GroupNorm {
  std::int64_t groups = 1;
  double eps = 1e-5;
  bool affine = true;  // a weight and a bias for each channel
};
// Normalises each pixel over its channels: torchvision's LayerNorm2d, and torch.nn.LayerNorm(C) on (N,H,W,C).
struct LayerNorm {
  double eps = 1e-5;
  bool affine = true;  // a weight and a bias for each channel
};
struct InstanceNorm2d {  // a GroupNorm with one group for each channel; without running statistics
  double eps = 1e-5;
  bool affine = false;
};
struct Add {};       // of two tensors of equal shape
struct Multiply {};  // of two tensors; the second may have one value for each channel or for each pixel
struct Concat {};    // joins tensors along their channels
struct Slice {       // consecutive channels
  std::int64_t first = 0, count = 0;
};
struct ChannelShuffle {  // channel c moves to c % (C / groups) * groups + c / (C / groups)
  std::int64_t groups = 2;
};
struct Linear {
  std::int64_t out_features = 0;
  bool bias = true;
  std::optional<Init> init{};  // of the weights, beside a bias of zeros; empty: PyTorch's default
  bool torch_bias = false;     // the bias always has PyTorch's default values, whatever `init` is
};
struct Relu {};
struct Activation {
  Function function;
};
// x, or the trained number w * x where x is not positive.
struct PRelu {
  std::int64_t num_parameters = 1;  // 1, or one for each channel or feature
  float init = 0.25f;
};
struct Softmax {};  // over the channels of each pixel, or over the features
struct MaxPool2d {
  HW kernel = 2;
  std::optional<HW> stride{};  // empty: the kernel; always set in a Model
  HW padding = 0;              // never the maximum
  HW dilation = 1;             // distance between the cells of the window
  bool ceil_mode = false;      // rounds the size of the output up instead of down
};
struct AvgPool2d {  // padding counts as zeros in the mean
  HW kernel = 2;
  std::optional<HW> stride{};  // as above
  HW padding = 0;
};
// The mean of each cell of a grid of `output` cells: cell i has the rows i * H / h, rounded down, to (i + 1) * H / h,
// rounded up, and the columns likewise. The cells may overlap.
struct AdaptiveAvgPool2d {
  HW output = 1;
};
// Enlarges images, or shrinks them, as torch.nn.Upsample. The size or the scale is given.
struct Upsample {
  std::optional<HW> size{};              // of the output; always set in a Model
  std::optional<double> scale_factor{};  // output / input, rounded down to whole cells
  enum class Mode { nearest, bilinear } mode = Mode::nearest;
  bool align_corners = false;  // bilinear: the centres of the corner cells of input and output are at the same places
};
struct ZeroPad2d {  // columns and rows of zeros; less than none: columns and rows that are cut off
  int left = 0, right = 0, top = 0, bottom = 0;
};
struct Dropout {
  float p = 0.5f;  // probability of dropping a unit; the rest is scaled by 1/(1-p)
  enum class Unit { element, channel, sample } unit = Unit::element;
};
struct Flatten {};  // (C,H,W) -> (C*H*W), in C,H,W order for every memory layout
struct Reshape {};  // to another (C,H,W), in C,H,W order
struct Input {};

using LayerKind = std::variant<Input, Conv2d, ConvTranspose2d, BatchNorm2d, GroupNorm, LayerNorm, Add, Multiply, Concat,
                               Slice, ChannelShuffle, Linear, Relu, Activation, PRelu, Softmax, MaxPool2d, AvgPool2d,
                               AdaptiveAvgPool2d, Upsample, ZeroPad2d, Dropout, Flatten, Reshape>;

struct Layer {
  std::string name;  // PyTorch's module path, "layer1.0.conv1"
  LayerKind kind;
  std::vector<int> inputs;  // indices of earlier layers
  Shape output;             // shape per sample, without the batch dimension
  int key = 0;              // of the layer's random numbers: its index in the model, before any split
};

struct ParameterSpec {
  std::string name;  // "conv1.weight"
  Shape shape;       // PyTorch's: conv (O,I,kH,kW), linear (O,I), bias and normalisation (O)
  int layer = 0;
  Init init{};
};

// Entries of the model's state dict that are not trained: "bn1.running_mean", "bn1.running_var" (float) and
// "bn1.num_batches_tracked" (int64, no dimensions).
enum class BufferKind { running_mean, running_var, num_batches_tracked };
struct BufferSpec {
  std::string name;
  Shape shape;
  DType type = DType::f32;
  int layer = 0;
  BufferKind kind = BufferKind::running_mean;
};

class Model {
 public:
  const std::string& name() const { return name_; }
  const std::vector<Layer>& layers() const { return layers_; }  // layers()[0] is the input; the last is the output
  const Shape& input() const { return layers_.front().output; }
  const Shape& output() const { return layers_.back().output; }
  // In forward order; backward completes the gradients in reverse order.
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  const std::vector<BufferSpec>& buffers() const { return buffers_; }
  std::int64_t parameter_count() const;

 private:
  friend class GraphBuilder;
  friend class ModelSplitter;  // engine/step/pipeline/stage_split.cpp
  std::string name_;
  std::vector<Layer> layers_;
  std::vector<ParameterSpec> parameters_;
  std::vector<BufferSpec> buffers_;
};

// The layers of a model that is being built. ModelBuilder appends them.
class GraphBuilder {
 public:
  struct Node {
    int index = -1;
  };

  GraphBuilder(std::string name, const Shape& input);  // input per sample: (C,H,W) or (features)

  Node input() const { return {0}; }
  Model build(Node output);  // `output`: the node added last; do not use the builder afterwards

 protected:
  Node append(std::string name, LayerKind kind, std::vector<int> inputs, const Shape& output);
  void parameter(const std::string& name, const Shape& shape, Node node, const Init& init);
  void buffer(const BufferSpec& buffer);
  std::vector<ParameterSpec>& parameters() { return model_.parameters_; }
  const Shape& shape_of(Node x, const std::string& reader) const;

 private:
  Model model_;
};

// Builds a model layer by layer. `name` is the layer's PyTorch module path, x its input. Methods throw Error(usage),
// which names the layer, if shapes do not fit, a size is not positive, or a name repeats.
class ModelBuilder : public GraphBuilder {
 public:
  using GraphBuilder::GraphBuilder;

  Node conv2d(const std::string& name, Node x, const Conv2d& options);
  Node conv_transpose2d(const std::string& name, Node x, const ConvTranspose2d& options);
  Node batch_norm2d(const std::string& name, Node x, const BatchNorm2d& options = {});
  Node group_norm(const std::string& name, Node x, const GroupNorm& options);
  Node layer_norm(const std::string& name, Node x, const LayerNorm& options = {});
  Node instance_norm2d(const std::string& name, Node x, const InstanceNorm2d& options = {});
  Node linear(const std::string& name, Node x, const Linear& options);  // x: (features)
  // Applies a linear layer to the channels of each pixel, as torch.nn.Linear does on (N,H,W,C). This equals a 1x1
  // convolution. The weights have the shape (out_features, C).
  Node pointwise_linear(const std::string& name, Node x, const Linear& options);
  // Multiplies each channel by a trained number. The parameter `name` has the shape (C,1,1). Its initial value is
  // `value`.
  Node scale(const std::string& name, Node x, float value = 1);
  Node relu(Node x);
  Node activation(Node x, const Function& function);  // of each element: activation(x, dp::Gelu{})
  Node prelu(const std::string& name, Node x, const PRelu& options = {});
  Node softmax(Node x);
  Node add(Node a, Node b);       // two different nodes
  Node subtract(Node a, Node b);  // a - b; two different nodes
  // Element by element. One of them may have one value for each channel (C,1,1) or for each pixel (1,H,W) of the other.
  Node multiply(Node a, Node b);
  Node concat(const std::vector<Node>& parts);  // along C, or features; other sizes are equal, nodes different
  Node slice(Node x, std::int64_t first, std::int64_t count);  // channels or features first ... first + count - 1
  Node channel_shuffle(Node x, std::int64_t groups);           // as torch.nn.ChannelShuffle
  Node max_pool2d(Node x, const MaxPool2d& options = {});
  Node avg_pool2d(Node x, const AvgPool2d& options = {});
  Node adaptive_avg_pool2d(Node x, HW output);
  Node global_avg_pool2d(Node x) { return adaptive_avg_pool2d(x, 1); }  // (C,H,W) -> (C,1,1)
  Node upsample(Node x, const Upsample& options);
  Node zero_pad2d(Node x, const ZeroPad2d& padding);
  Node dropout(const std::string& name, Node x, float p);
  Node dropout2d(const std::string& name, Node x, float p);         // whole channels
  Node stochastic_depth(const std::string& name, Node x, float p);  // whole samples, as torchvision's mode "row"
  Node flatten(Node x);
  // As torch.reshape of each sample, to (C,H,W) or (features). One size may be -1: it follows from the others.
  Node reshape(Node x, std::vector<std::int64_t> sizes);
};

}  // namespace dp
