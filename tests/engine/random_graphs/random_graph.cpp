#include "engine/random_graphs/random_graph.h"

#include <algorithm>
#include <string>
#include <vector>

#include "dp/random.h"

namespace dp::test {
namespace {

constexpr std::int64_t kClasses = 3;

class GraphWriter {
 public:
  explicit GraphWriter(std::uint64_t seed)
      : random_(seed, RandomUse::synthetic, 17),
        input_{one_of<std::int64_t>({1, 2, 3}), one_of<std::int64_t>({3, 4, 5, 6}), one_of<std::int64_t>({3, 4, 5, 6})},
        m_("graph" + std::to_string(seed), input_) {
    places_.push_back({m_.input(), input_});
  }

  Model write() {
    for (int layers = 5 + static_cast<int>(random_.below(9)); layers > 0; --layers) append_layer();
    return join_unread();
  }

 private:
  struct Place {
    ModelBuilder::Node node;
    Shape shape;
    bool read = false;
  };

  template <typename T>
  T one_of(const std::vector<T>& choices) {
    return choices[random_.below(static_cast<std::uint32_t>(choices.size()))];
  }
  bool chance(float p) { return random_.uniform() < p; }
  std::string name(const char* kind) { return kind + std::to_string(++names_); }

  // Usually the newest tensor, so that layers form chains; sometimes an older one, which then has several readers.
  Place& pick() {
    return chance(0.6f) ? places_.back() : places_[random_.below(static_cast<std::uint32_t>(places_.size()))];
  }
  void put(ModelBuilder::Node node, const Shape& shape) { places_.push_back({node, shape}); }
  Place read_newest() {
    places_.back().read = true;
    return places_.back();
  }

  void append_layer() {
    if (chance(0.3f) && append_add()) return;
    if (chance(0.2f) && append_concat()) return;
    Place& x = pick();
    x.read = true;
    const Place from = x;  // a copy: places_ grows
    from.shape.rank() == 3 ? append_to_map(from) : append_to_row(from);
  }

  bool append_add() {
    std::vector<std::pair<std::size_t, std::size_t>> pairs;
    for (std::size_t a = 0; a < places_.size(); ++a)
      for (std::size_t b = 0; b < places_.size(); ++b)
        if (a != b && places_[a].shape == places_[b].shape) pairs.emplace_back(a, b);
    if (pairs.empty()) return false;
    const auto [a, b] = one_of(pairs);
    places_[a].read = places_[b].read = true;
    put(m_.add(places_[a].node, places_[b].node), places_[a].shape);
    return true;
  }

  // Of two or three tensors.
  bool append_concat() {
    const Place& first = pick();
    std::vector<std::size_t> parts{static_cast<std::size_t>(&first - places_.data())};
    for (std::size_t i = 0; i < places_.size() && parts.size() < 3; ++i)
      if (i != parts.front() && places_[i].shape.without_first() == first.shape.without_first() && chance(0.5f))
        parts.push_back(i);
    if (parts.size() < 2) return false;
    std::vector<ModelBuilder::Node> nodes;
    std::int64_t channels = 0;
    for (const std::size_t part : parts) {
      places_[part].read = true;
      nodes.push_back(places_[part].node);
      channels += places_[part].shape[0];
    }
    put(m_.concat(nodes), first.shape.without_first().prepended(channels));
    return true;
  }

  void append_slice(const Place& x) {
    const auto first = static_cast<std::int64_t>(random_.below(static_cast<std::uint32_t>(x.shape[0])));
    const auto count = 1 + static_cast<std::int64_t>(random_.below(static_cast<std::uint32_t>(x.shape[0] - first)));
    put(m_.slice(x.node, first, count), x.shape.without_first().prepended(count));
  }

  void append_shuffle(const Place& x) {
    const std::int64_t groups = x.shape[0] % 3 == 0 ? 3 : x.shape[0] % 2 == 0 ? 2 : 1;
    put(m_.channel_shuffle(x.node, groups), x.shape);
  }
  // Rows and columns change places, or channels become rows.
  void append_reshape(const Place& x) {
    const Shape to =
        chance(0.5f) ? Shape{x.shape[0], x.shape[2], x.shape[1]} : Shape{x.shape[1], x.shape[0], x.shape[2]};
    put(m_.reshape(x.node, {to[0], -1, to[2]}), to);
  }
  // Often as in ConvNeXt: with a linear layer on each pixel, and a factor for each channel.
  void append_layer_norm(const Place& x) {
    if (x.shape[0] == 1) return append_shuffle(x);
    auto node = m_.layer_norm(name("layer_norm"), x.node, {.eps = one_of<double>({1e-5, 0.1}), .affine = chance(0.7f)});
    if (chance(0.3f)) node = m_.relu(node);
    if (chance(0.5f))
      node = m_.pointwise_linear(name("pointwise"), node, {.out_features = x.shape[0], .bias = chance(0.7f)});
    if (chance(0.5f)) node = m_.scale(name("scale"), node, 0.5f);
    put(node, x.shape);
  }

  // As squeeze-and-excitation: by a factor for each channel, or for each pixel.
  void append_product(const Place& x) {
    const bool pixels = chance(0.4f);
    auto factor = pixels ? x.node : m_.global_avg_pool2d(x.node);
    factor = m_.conv2d(name("se"), factor, {.out_channels = pixels ? 1 : x.shape[0], .kernel = 1});
    put(m_.multiply(x.node, m_.activation(factor, Sigmoid{})), x.shape);
  }

  // Larger images: upsampled, with a border of zeros, or by a transposed convolution.
  void append_larger(const Place& x) {
    if (x.shape[1] * x.shape[2] > 40) return append_shuffle(x);
    const int kind = one_of<int>({0, 1, 2, 2});
    if (kind == 0) {
      const HW size(static_cast<int>(x.shape[1]) + one_of<int>({-1, 1, 2}) * (x.shape[1] > 1),
                    static_cast<int>(x.shape[2]) + one_of<int>({1, 3}));
      const bool bilinear = chance(0.6f);
      const auto node = m_.upsample(x.node, {.size = size,
                                             .mode = bilinear ? Upsample::Mode::bilinear : Upsample::Mode::nearest,
                                             .align_corners = bilinear && chance(0.5f)});
      return put(node, Shape{x.shape[0], size.h, size.w});
    }
    if (kind == 1) {
      const ZeroPad2d pad{one_of<int>({0, 1}), 1, one_of<int>({0, 2}), x.shape[1] > 1 ? -1 : 0};
      return put(m_.zero_pad2d(x.node, pad),
                 Shape{x.shape[0], x.shape[1] + pad.top + pad.bottom, x.shape[2] + pad.left + pad.right});
    }
    const std::int64_t channels = chance(0.5f) ? x.shape[0] : one_of<std::int64_t>({1, 2, 4});
    const int stride = one_of<int>({1, 2});
    const ConvTranspose2d conv{.out_channels = channels,
                               .kernel = {one_of<int>({2, 3}), 2},
                               .stride = {stride, 1},
                               .output_padding = {stride - 1, 0},
                               .groups = chance(0.5f) && channels == x.shape[0] ? channels : 1,
                               .bias = chance(0.7f)};
    put(m_.conv_transpose2d(name("up"), x.node, conv),
        Shape{channels, (x.shape[1] - 1) * stride + conv.kernel.h + stride - 1, x.shape[2] + 1});
    if (chance(0.3f)) append_relu(read_newest());
  }

  void append_along_channels(const Place& x) {
    if (chance(0.3f)) return put(m_.softmax(x.node), x.shape);
    const bool each = chance(0.6f);
    put(m_.prelu(name("prelu"), x.node, {.num_parameters = each ? x.shape[0] : 1}), x.shape);
  }

  void append_to_map(const Place& x) {
    switch (random_.below(26)) {
      case 0:
      case 1:
      case 2: return append_conv(x);
      case 3:
      case 4:
      case 24: return append_norm(x);
      case 5:
      case 6: return append_relu(x);
      case 7: return append_pool(x, true);
      case 8: return append_pool(x, false);
      case 9: return append_dropout(x);
      case 10:
      case 11:
        put(m_.flatten(x.node), Shape{x.shape.numel()});
        return chance(0.5f) ? append_linear(read_newest()) : void();
      case 12: return append_slice(x);
      case 13:
      case 14: return append_product(x);
      case 15: return chance(0.5f) ? append_shuffle(x) : append_reshape(x);
      case 16:
      case 17: return append_layer_norm(x);
      case 18:
      case 19:
      case 20:
      case 25: return append_larger(x);
      case 21:
      case 22: return append_along_channels(x);
      default: return put(m_.global_avg_pool2d(x.node), Shape{x.shape[0], 1, 1});
    }
  }

  void append_to_row(const Place& x) {
    if (chance(0.06f)) return append_along_channels(x);
    if (chance(0.06f)) return put(m_.reshape(x.node, {-1, 1, 1}), Shape{x.shape[0], 1, 1});
    switch (random_.below(5)) {
      case 4: return append_slice(x);
      case 0: return append_relu(x);
      case 1: return append_dropout(x);
      default: return append_linear(x);
    }
  }

  // Sometimes another function.
  void append_relu(const Place& x) {
    static const std::vector<Function> functions{LeakyRelu{0.1f}, Elu{},  Sigmoid{},  Tanh{},      Silu{},
                                                 HardSwish{},     Gelu{}, GeluTanh{}, Times{-0.5f}};
    put(chance(0.75f) ? m_.relu(x.node) : m_.activation(x.node, one_of(functions)), x.shape);
  }
  void append_dropout(const Place& x) {
    if (x.shape.rank() == 3 && chance(0.4f)) {
      const auto p = one_of<float>({0.25f, 0.5f});
      const auto node =
          chance(0.5f) ? m_.dropout2d(name("dropout2d"), x.node, p) : m_.stochastic_depth(name("depth"), x.node, p);
      return put(node, x.shape);
    }
    put(m_.dropout(name("dropout"), x.node, one_of<float>({0, 0.5f, 0.5f, 0.75f})), x.shape);
  }

  // Often adds layers that fuse with the linear layer.
  void append_linear(const Place& x) {
    const std::int64_t features = one_of<std::int64_t>({kClasses, 4, x.shape[0]});
    put(m_.linear(name("fc"), x.node, {.out_features = features, .bias = chance(0.7f)}), Shape{features});
    if (!chance(0.6f)) return;
    append_relu(read_newest());
    if (chance(0.7f)) append_dropout(read_newest());
    if (chance(0.5f)) append_add_to_newest();
  }

  void append_norm(const Place& x) {
    // A large eps for few values: they may be nearly equal, and normalising them would magnify float32 rounding.
    const bool few = x.shape[1] * x.shape[2] < 4;
    const double eps = one_of<double>({1e-3, 1e-2, 0.1});
    const std::int64_t groups = one_of<std::int64_t>({1, x.shape[0]});
    if (chance(0.5f) && x.shape.numel() > groups)
      put(m_.group_norm(name("gn"), x.node, {.groups = groups, .eps = few ? 0.1 : eps, .affine = chance(0.7f)}),
          x.shape);
    else
      put(m_.batch_norm2d(name("bn"), x.node, {.eps = few ? 0.1 : eps, .affine = chance(0.85f)}), x.shape);
    if (chance(0.5f)) append_add_to_newest();
    if (chance(0.5f)) append_relu(read_newest());
  }

  void append_add_to_newest() {
    std::vector<std::size_t> others;
    for (std::size_t i = 0; i + 1 < places_.size(); ++i)
      if (places_[i].shape == places_.back().shape) others.push_back(i);
    if (others.empty()) return;
    Place& other = places_[one_of(others)];
    other.read = true;
    const Place x = read_newest();
    put(chance(0.5f) ? m_.add(x.node, other.node) : m_.add(other.node, x.node), x.shape);
  }

  // In groups, dilated, and with a window that is not square.
  void append_uneven_conv(const Place& x) {
    const std::int64_t channels = x.shape[0];
    put(m_.conv2d(name("conv"), x.node,
                  {.out_channels = channels,
                   .kernel = {one_of<int>({1, 2, 3}), one_of<int>({1, 3})},
                   .padding = kSamePadding,
                   .dilation = {one_of<int>({1, 2}), one_of<int>({1, 2})},
                   .groups = chance(0.7f) ? channels : 1,
                   .bias = chance(0.5f)}),
        x.shape);
    if (chance(0.3f)) append_norm(read_newest());
    if (chance(0.3f)) append_relu(read_newest());
  }

  void append_conv(const Place& x) {
    if (chance(0.2f)) return append_uneven_conv(x);
    Conv2d conv{.out_channels = chance(0.6f) ? x.shape[0] : one_of<std::int64_t>({1, 2, 4}),
                .kernel = one_of<int>({1, 3, 3, 2}),
                .stride = chance(0.8f) ? 1 : 2,
                .bias = chance(0.5f)};
    conv.padding = chance(0.8f) ? conv.kernel.h / 2 : 0;
    if (!fits(x.shape, conv.kernel.h, conv.padding.h)) conv.kernel = 1, conv.padding = 0;
    const auto node = m_.conv2d(name("conv"), x.node, conv);
    const Shape shape = window_output(x.shape, conv.out_channels, conv.kernel.h, conv.stride.h, conv.padding.h);
    put(node, shape);
    if (!chance(0.5f)) return;
    append_relu(read_newest());
    if (!chance(0.25f)) return;
    append_pool(read_newest(), true);
    if (chance(0.5f)) append_dropout(read_newest());
  }

  void append_pool(const Place& x, bool largest) {
    if (!largest && chance(0.3f)) {
      const HW size(one_of<int>({1, 2, 3}), one_of<int>({1, 2, 4}));
      return put(m_.adaptive_avg_pool2d(x.node, size), Shape{x.shape[0], size.h, size.w});
    }
    int kernel = one_of<int>({2, 3}), padding = chance(0.5f) ? kernel / 2 : 0;
    if (!fits(x.shape, kernel, padding)) kernel = 1, padding = 0;
    const int stride = chance(0.5f) ? 1 : 2;
    const Shape shape = window_output(x.shape, x.shape[0], kernel, stride, padding);
    if (!largest) return put(m_.avg_pool2d(x.node, {.kernel = kernel, .stride = stride, .padding = padding}), shape);
    // In ceil mode a row or column that is left over has a window of its own, if that begins in the image.
    const bool ceil_mode = chance(0.3f) && padding == 0 && stride == 2;
    const auto left_over = [&](int axis) {
      return ceil_mode && (x.shape[axis] - kernel) % 2 != 0 && shape[axis] * stride < x.shape[axis];
    };
    put(m_.max_pool2d(x.node, {.kernel = kernel, .stride = stride, .padding = padding, .ceil_mode = ceil_mode}),
        Shape{shape[0], shape[1] + left_over(1), shape[2] + left_over(2)});
  }

  static bool fits(const Shape& x, int kernel, int padding) { return std::min(x[1], x[2]) + 2 * padding >= kernel; }
  static Shape window_output(const Shape& x, std::int64_t channels, int kernel, int stride, int padding) {
    return {channels, (x[1] + 2 * padding - kernel) / stride + 1, (x[2] + 2 * padding - kernel) / stride + 1};
  }

  // A linear layer for each unread tensor; the logits are their sum.
  Model join_unread() {
    ModelBuilder::Node sum;
    for (const Place& place : places_) {
      if (place.read) continue;
      const auto row = place.shape.rank() == 3 ? m_.flatten(place.node) : place.node;
      const auto logits = m_.linear(name("out"), row, {.out_features = kClasses});
      sum = sum.index < 0 ? logits : m_.add(sum, logits);
    }
    return m_.build(sum);
  }

  Random random_;
  Shape input_;
  ModelBuilder m_;
  std::vector<Place> places_;
  int names_ = 0;
};

}  // namespace

Model random_graph(std::uint64_t seed) { return GraphWriter(seed).write(); }

}  // namespace dp::test
