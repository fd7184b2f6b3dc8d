#include "engine/layers/nodes.h"

#include <algorithm>
#include <type_traits>

#include "dp/error.h"

namespace dp::engine {
namespace {

// The layers of a model, the readers of each layer, and the layers that a node already contains.
class Layers {
 public:
  Layers(const Model& model, bool dropout)
      : model_(model), dropout_(dropout), readers_(count()), taken_(count()), joins_(count(), -1) {
    for (std::size_t i = 0; i < count(); ++i)
      for (const int input : model.layers()[i].inputs) readers_[index(input)].push_back(static_cast<int>(i));
    for (std::size_t i = 0; i + 1 < count(); ++i)
      if (readers_[i].empty())
        throw Error(ErrorCode::usage, "nothing reads layer '" + model.layers()[i].name + "' of model '" + model.name() +
                                          "'; remove it, or connect it");
    find_joins();
  }

 protected:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  std::size_t count() const { return model_.layers().size(); }
  const Layer& layer(std::size_t i) const { return model_.layers()[i]; }
  template <typename T>
  bool is(std::size_t i) const {
    return std::holds_alternative<T>(layer(i).kind);
  }
  bool inactive(std::size_t i) const {
    const auto* dropout = std::get_if<Dropout>(&layer(i).kind);
    return is<Input>(i) || is<Flatten>(i) || (dropout != nullptr && (!dropout_ || dropout->p == 0.0f)) ||
           (is<AdaptiveAvgPool2d>(i) && layer(i).output == layer(index(layer(i).inputs[0])).output);
  }
  bool drops_elements(std::size_t i) const {
    const auto* dropout = std::get_if<Dropout>(&layer(i).kind);
    return dropout != nullptr && dropout->unit == Dropout::Unit::element && !inactive(i);
  }
  // The only layer that reads layer i, or -1.
  int sole_reader(std::size_t i) const { return readers_[i].size() == 1 ? readers_[i][0] : -1; }

  // A normalisation whose result is read only by an addition is fused into that addition. If both inputs qualify, the
  // first one is fused.
  void find_joins() {
    for (std::size_t i = 0; i < count(); ++i) {
      if (!is<Add>(i)) continue;
      for (const int input : layer(i).inputs)
        if (is<BatchNorm2d>(index(input)) && sole_reader(index(input)) == static_cast<int>(i)) {
          joins_[index(input)] = static_cast<int>(i);
          break;
        }
    }
  }

  // Appends layer i to `node`. The inputs of the layer must have been computed.
  void take(Node& node, std::size_t i, const std::string& label) {
    node.name += (node.name.empty() ? "" : "+") + label;
    node.output = layer(i).output;
    taken_[i] = true;
    last_ = i;
  }
  // Whether layer i is a ReLU that only a max-pool reads. It is fused into the pool, where it processes fewer elements
  // and gives the same result (docs/decisions/0004).
  bool relu_before_pool(std::size_t i) const {
    const int reader = sole_reader(i);
    return is<Relu>(i) && reader >= 0 && is<MaxPool2d>(index(reader));
  }
  bool take_relu(Node& node) {
    const int reader = sole_reader(last_);
    if (reader < 0 || !is<Relu>(index(reader)) || relu_before_pool(index(reader))) return false;
    take(node, index(reader), "relu");
    return true;
  }
  void take_dropout(Node& node, std::size_t i) {
    node.dropout = kernels::DropoutSpec{std::get<Dropout>(layer(i).kind).p, static_cast<std::uint32_t>(layer(i).key)};
    take(node, i, layer(i).name);
  }
  void attach_parameters(Node& node, std::size_t at, bool bias) const {
    const auto& parameters = model_.parameters();
    node.layer = static_cast<int>(at);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].layer == static_cast<int>(at)) {
        node.weight = static_cast<int>(i);
        if (bias) node.bias = static_cast<int>(i) + 1;
        return;
      }
  }
  void make_parts(Node& node, std::size_t i) {
    for (const int input : layer(i).inputs) node.parts.push_back(layer(index(input)).output);
  }
  void make_group_norm(Node& node, std::size_t i, std::int64_t groups, double eps, bool affine) {
    node.kind = NodeKind::group_norm;
    node.groups = groups;
    node.eps = eps;
    attach_parameters(node, i, affine);
    take(node, i, layer(i).name);
    node.relu = take_relu(node);
  }

  const Model& model_;
  const bool dropout_;
  std::vector<std::vector<int>> readers_;
  std::vector<char> taken_;
  std::vector<int> joins_;  // per layer; of a normalisation: the addition that it is fused into
  std::size_t last_ = 0;    // last layer appended
};

// Makes the nodes in the order of their first layers. Skips layers that do nothing at run time.
class Fuser : Layers {
 public:
  Fuser(const Model& model, bool dropout) : Layers(model, dropout), node_of_(count(), -1) {}

  std::vector<Node> run() {
    for (std::size_t i = 0; i < count(); ++i) {
      if (taken_[i]) continue;
      if (inactive(i)) {
        if (i > 0) node_of_[i] = node_of_[index(layer(i).inputs[0])];
        continue;
      }
      if (joins_[i] >= 0) continue;  // a normalisation that is fused into its addition
      make_node(i);
    }
    if (nodes_.empty())
      throw Error(ErrorCode::usage, "model '" + model_.name() + "' has no layer that computes anything");
    return std::move(nodes_);
  }

 private:
  void make_node(std::size_t i) {
    Node node{};
    for (const int input : layer(i).inputs) node.inputs.push_back(node_of_[index(input)]);
    node.input = layer(index(layer(i).inputs[0])).output;
    std::visit([&](const auto& kind) { fill(node, kind, i); }, layer(i).kind);
    node_of_[last_] = static_cast<int>(nodes_.size());
    nodes_.push_back(std::move(node));
  }

  // One overload for each kind of layer: a new kind does not compile without one.
  void fill(Node& node, const Conv2d& conv, std::size_t i) {
    node.kind = NodeKind::conv;
    node.window = {conv.kernel, conv.stride, conv.padding, conv.dilation, conv.padding.more_behind};
    node.groups = conv.groups;
    attach_parameters(node, i, conv.bias);
    take(node, i, layer(i).name);
    node.relu = take_relu(node);
  }
  void fill(Node& node, const ConvTranspose2d& conv, std::size_t i) {
    node.kind = NodeKind::conv_transpose;
    node.window = {conv.kernel, conv.stride, conv.padding, conv.dilation};
    node.groups = conv.groups;
    attach_parameters(node, i, conv.bias);
    take(node, i, layer(i).name);
  }
  void fill(Node& node, const Linear& linear, std::size_t i) {
    node.kind = NodeKind::linear;
    // Flatten moves no data: the linear op reads the output of the previous node.
    node.input = node.inputs[0] >= 0 ? nodes_[index(node.inputs[0])].output : model_.input();
    attach_parameters(node, i, linear.bias);
    take(node, i, layer(i).name);
    node.relu = take_relu(node);
  }
  void fill(Node& node, const BatchNorm2d&, std::size_t i) {
    make_norm(node, i);
    node.relu = take_relu(node);
  }
  void fill(Node& node, const GroupNorm& norm, std::size_t i) {
    make_group_norm(node, i, norm.groups, norm.eps, norm.affine);
  }
  void fill(Node& node, const LayerNorm& norm, std::size_t i) {
    make_group_norm(node, i, kernels::kEachPixel, norm.eps, norm.affine);
  }
  void fill(Node& node, const Add&, std::size_t i) {
    make_add(node, i);
    node.relu = take_relu(node);
  }
  void fill(Node& node, const Multiply&, std::size_t i) {
    node.kind = NodeKind::multiply;
    make_parts(node, i);
    take(node, i, "multiply");
  }
  void fill(Node& node, const Concat&, std::size_t i) {
    node.kind = NodeKind::concat;
    make_parts(node, i);
    take(node, i, "concat");
  }
  void fill(Node& node, const Slice& slice, std::size_t i) {
    node.kind = NodeKind::slice;
    node.first = slice.first;
    take(node, i, "slice");
  }
  void fill(Node& node, const ChannelShuffle& shuffle, std::size_t i) {
    node.kind = NodeKind::channel_shuffle;
    node.groups = shuffle.groups;
    take(node, i, "channel_shuffle");
  }
  void fill(Node& node, const MaxPool2d&, std::size_t i) { make_max_pool(node, i); }
  void fill(Node& node, const AvgPool2d& pool, std::size_t i) {
    node.kind = NodeKind::avg_pool;
    node.window = {pool.kernel, *pool.stride, pool.padding};
    take(node, i, "avg_pool");
  }
  void fill(Node& node, const AdaptiveAvgPool2d&, std::size_t i) {
    node.kind = NodeKind::avg_pool;
    node.adaptive = true;
    take(node, i, "avg_pool");
  }
  void fill(Node& node, const Upsample& upsample, std::size_t i) {
    const bool bilinear = upsample.mode == Upsample::Mode::bilinear;
    node.kind = NodeKind::resample;
    node.resampling = {bilinear ? kernels::Resampling::Mode::bilinear : kernels::Resampling::Mode::nearest,
                       upsample.align_corners, upsample.scale_factor.value_or(0)};
    take(node, i, "upsample");
  }
  void fill(Node& node, const ZeroPad2d& padding, std::size_t i) {
    node.kind = NodeKind::resample;
    node.resampling = {.mode = kernels::Resampling::Mode::shifted, .shift = {padding.top, padding.left}};
    take(node, i, "zero_pad");
  }
  void fill(Node& node, const Relu&, std::size_t i) {
    if (relu_before_pool(i)) return make_max_pool(node, i);
    node.kind = NodeKind::relu;
    take(node, i, "relu");
  }
  void fill(Node& node, const Activation& activation, std::size_t i) {
    node.kind = NodeKind::activation;
    node.function = activation.function;
    take(node, i, name_of(activation.function));
  }
  void fill(Node& node, const PRelu& prelu, std::size_t i) {
    node.kind = NodeKind::prelu;
    node.numbers = prelu.num_parameters;
    attach_parameters(node, i, false);
    take(node, i, layer(i).name);
  }
  void fill(Node& node, const Softmax&, std::size_t i) {
    node.kind = NodeKind::softmax;
    take(node, i, "softmax");
  }
  void fill(Node& node, const Reshape&, std::size_t i) {
    node.kind = NodeKind::reshape;
    take(node, i, "reshape");
  }
  void fill(Node& node, const Dropout& dropout, std::size_t i) {
    node.kind = dropout.unit == Dropout::Unit::element ? NodeKind::dropout : NodeKind::drop_channels;
    node.whole_samples = dropout.unit == Dropout::Unit::sample;
    take_dropout(node, i);
  }
  // These two compute nothing: run() does not make nodes of them.
  template <typename T>
  requires std::is_same_v<T, Input> || std::is_same_v<T, Flatten>
  void fill(Node&, const T&, std::size_t) {}

  void make_norm(Node& node, std::size_t i) {
    node.kind = NodeKind::norm;
    node.norm = norms_++;
    node.tracked = std::get<BatchNorm2d>(layer(i).kind).track_running_stats;
    attach_parameters(node, i, true);
    take(node, i, layer(i).name);
  }
  void make_add(Node& node, std::size_t i) {
    for (const int input : layer(i).inputs) {
      if (joins_[index(input)] != static_cast<int>(i)) continue;
      const int x = layer(index(input)).inputs[0], addend = layer(i).inputs[layer(i).inputs[0] == input];
      node.inputs = {node_of_[index(x)], node_of_[index(addend)]};
      make_norm(node, index(input));
      break;
    }
    if (node.norm < 0) node.kind = NodeKind::add;
    take(node, i, "add");
  }
  void make_max_pool(Node& node, std::size_t i) {
    node.kind = NodeKind::max_pool;
    if (is<Relu>(i)) {
      node.relu = true;
      take(node, i, "relu");
      i = index(sole_reader(i));
    }
    const auto& pool = std::get<MaxPool2d>(layer(i).kind);
    node.window = {pool.kernel, *pool.stride, pool.padding, pool.dilation};
    node.window.more_behind =
        kernels::more_behind(layer(index(layer(i).inputs[0])).output, layer(i).output, node.window);
    take(node, i, "max_pool");
    const int reader = sole_reader(i);
    if (reader >= 0 && drops_elements(index(reader))) take_dropout(node, index(reader));
  }

  std::vector<int> node_of_;  // per layer whose result is stored: the node that writes it
  std::vector<Node> nodes_;
  int norms_ = 0;
};

}  // namespace

std::vector<Node> fuse(const Model& model, bool dropout) { return Fuser(model, dropout).run(); }

std::vector<NormNeighbours> norm_neighbours(const std::vector<Node>& nodes, bool adjacent) {
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  std::vector<std::vector<int>> readers(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (const int input : nodes[i].inputs)
      if (input >= 0) readers[at(input)].push_back(static_cast<int>(i));

  const auto is_conv = [&](int i) { return i >= 0 && nodes[at(i)].kind == NodeKind::conv; };
  const auto is_plain = [&](int i) { return is_conv(i) && nodes[at(i)].bias < 0 && !nodes[at(i)].relu; };
  std::vector<NormNeighbours> all(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    if (node.kind != NodeKind::norm || node.weight < 0 || !node.tracked) continue;
    NormNeighbours& own = all[i];
    const int number = static_cast<int>(i), before = node.inputs[0];
    if (is_conv(before) && !nodes[at(before)].relu && readers[at(before)].size() == 1) all[at(before)].folds = number;
    if (before >= 0 && is_plain(before) && readers[at(before)].size() == 1 && (!adjacent || before + 1 == number)) {
      own.moments = before;
      all[at(before)].normalizes = number;
    }
    // Backward visits the nodes in reverse: the first reader contributes its gradient last.
    const std::vector<int>& behind = readers[i];
    const bool each_once = behind.size() == 1 || (behind.size() == 2 && behind[0] != behind[1]);
    if (!each_once) continue;
    const int first = *std::ranges::min_element(behind);
    if (!is_conv(first) || (adjacent && first != number + 1)) continue;
    own.gradient = first;
    if (behind.size() == 1 && is_plain(first) && node.relu && node.inputs.size() == 1) own.reader = first;
  }
  return all;
}

NormTable::NormTable(const Model& model) {
  constexpr std::int64_t kAlign = 16;
  const auto place = [this](std::int64_t channels) {
    const std::int64_t at = running_statistics_size_;
    running_statistics_size_ += (channels + kAlign - 1) / kAlign * kAlign;
    return at;
  };
  for (const Node& node : fuse(model, /*dropout=*/false)) {
    if (node.kind != NodeKind::norm) continue;
    const Layer& layer = model.layers()[static_cast<std::size_t>(node.layer)];
    const auto& options = std::get<BatchNorm2d>(layer.kind);
    Norm norm;
    norm.name = layer.name;
    norm.layer = node.layer;
    norm.channels = layer.output[0];
    norm.cells = layer.output[1] * layer.output[2];
    norm.eps = options.eps;
    norm.momentum = options.momentum;
    norm.mean = place(norm.channels);
    norm.variance = place(norm.channels);
    norm.moments = moments_bytes_;
    moments_bytes_ += norm.moments_bytes();
    norm.sums = moments_bytes_;
    moments_bytes_ += norm.sums_bytes();
    norms_.push_back(std::move(norm));
  }
}

const Norm* NormTable::first_on_1x1_images() const {
  const auto found = std::find_if(norms_.begin(), norms_.end(), [](const Norm& norm) { return norm.cells == 1; });
  return found == norms_.end() ? nullptr : &*found;
}

}  // namespace dp::engine
