// ModelBuilder with keyword arguments: PyTorch's names and defaults.
#include <dp/functions.h>
#include <dp/model.h>
#include <set>
#include <tuple>

#include "convert.h"

namespace dp_python {
namespace {

using Node = dp::GraphBuilder::Node;

// A C++ builder must not be used after build().
class Builder {
 public:
  Builder(const std::string& name, const dp::Shape& input) : builder_(std::in_place, name, input) {}
  dp::ModelBuilder& operator*() {
    if (!builder_) refuse("the model is built already; make another ModelBuilder");
    return *builder_;
  }
  dp::Model build(Node output) {
    dp::Model model = (**this).build(output);
    builder_.reset();
    return model;
  }

 private:
  std::optional<dp::ModelBuilder> builder_;
};

// The function with this name and these parameters.
template <std::size_t kIndex = 0>
dp::Function function_named(const std::string& name, const nb::kwargs& parameters) {
  if constexpr (kIndex == std::variant_size_v<dp::Function>) {
    refuse("function '" + name +
           "' does not exist; dp/functions.h has relu6, leaky_relu, elu, sigmoid, hardsigmoid, "
           "tanh, silu, hardswish, gelu, gelu_tanh and times");
  } else {
    using Own = std::variant_alternative_t<kIndex, dp::Function>;
    if (name != Own::kName) return function_named<kIndex + 1>(name, parameters);
    Own function;
    for (const auto& [key, value] : parameters) {
      const std::string parameter = nb::cast<std::string>(key);
      bool known = false;
      const auto take = [&](const char* own, float& place) {
        if (parameter == own) place = nb::cast<float>(value), known = true;
      };
      if constexpr (requires { function.negative_slope; }) take("negative_slope", function.negative_slope);
      if constexpr (requires { function.alpha; }) take("alpha", function.alpha);
      if constexpr (requires { function.factor; }) take("factor", function.factor);
      if (!known) refuse("function '" + name + "' has no parameter '" + parameter + "'");
    }
    return function;
  }
}

std::optional<dp::Init> init_of(const std::optional<std::pair<std::string, float>>& init) {
  if (!init) return std::nullopt;
  return dp::Init{choose<dp::InitKind>("init", init->first, {"uniform", "normal", "constant", "dirac"}), init->second};
}

void bind_convolutions(nb::class_<Builder>& builder) {
  builder.def(
      "conv2d",
      [](Builder& self, const std::string& name, Node x, std::int64_t out_channels, dp::HW kernel_size, dp::HW stride,
         dp::Padding padding, dp::HW dilation, std::int64_t groups, bool bias, const std::string& init,
         bool torch_bias) {
        return (*self).conv2d(
            name, x,
            {.out_channels = out_channels,
             .kernel = kernel_size,
             .stride = stride,
             .padding = padding,
             .dilation = dilation,
             .groups = groups,
             .bias = bias,
             .init = choose<dp::ConvInit>("init", init,
                                          {"torch_default", "kaiming_normal_fan_out", "kaiming_normal_fan_in",
                                           "normal_001", "normal_002", "dirac"}),
             .torch_bias = torch_bias});
      },
      "name"_a, "x"_a, "out_channels"_a, "kernel_size"_a, "stride"_a = dp::HW(1), "padding"_a = dp::Padding(0),
      "dilation"_a = dp::HW(1), "groups"_a = 1, "bias"_a = true, nb::kw_only(), "init"_a = "torch_default",
      "torch_bias"_a = false,
      "As torch.nn.Conv2d.\n\ninit: torch_default, kaiming_normal_fan_out, kaiming_normal_fan_in, normal_001, "
      "normal_002 or dirac; with the others the bias is zero, unless torch_bias is set.");
  builder.def(
      "conv_transpose2d",
      [](Builder& self, const std::string& name, Node x, std::int64_t out_channels, dp::HW kernel_size, dp::HW stride,
         dp::HW padding, dp::HW output_padding, std::int64_t groups, bool bias, dp::HW dilation) {
        return (*self).conv_transpose2d(name, x,
                                        {.out_channels = out_channels,
                                         .kernel = kernel_size,
                                         .stride = stride,
                                         .padding = padding,
                                         .output_padding = output_padding,
                                         .groups = groups,
                                         .bias = bias,
                                         .dilation = dilation});
      },
      "name"_a, "x"_a, "out_channels"_a, "kernel_size"_a, "stride"_a = dp::HW(1), "padding"_a = dp::HW(0),
      "output_padding"_a = dp::HW(0), "groups"_a = 1, "bias"_a = true, "dilation"_a = dp::HW(1),
      "As torch.nn.ConvTranspose2d.");
  builder.def(
      "linear",
      [](Builder& self, const std::string& name, Node x, std::int64_t out_features, bool bias,
         const std::optional<std::pair<std::string, float>>& init, bool torch_bias) {
        return (*self).linear(
            name, x, {.out_features = out_features, .bias = bias, .init = init_of(init), .torch_bias = torch_bias});
      },
      "name"_a, "x"_a, "out_features"_a, "bias"_a = true, nb::kw_only(), "init"_a = nb::none(), "torch_bias"_a = false,
      "As torch.nn.Linear, of (features).\n\ninit: of the weights, beside a bias of zeros: ('normal', 0.01), "
      "('uniform', limit) or ('constant', value).");
  builder.def(
      "pointwise_linear",
      [](Builder& self, const std::string& name, Node x, std::int64_t out_features, bool bias,
         const std::optional<std::pair<std::string, float>>& init, bool torch_bias) {
        return (*self).pointwise_linear(
            name, x, {.out_features = out_features, .bias = bias, .init = init_of(init), .torch_bias = torch_bias});
      },
      "name"_a, "x"_a, "out_features"_a, "bias"_a = true, nb::kw_only(), "init"_a = nb::none(), "torch_bias"_a = false,
      "A linear layer on the channels of each pixel, as torch.nn.Linear on (N, H, W, C).");
}

void bind_norms(nb::class_<Builder>& builder) {
  builder.def(
      "batch_norm2d",
      [](Builder& self, const std::string& name, Node x, double eps, double momentum, bool affine, bool track) {
        return (*self).batch_norm2d(name, x,
                                    {.eps = eps, .momentum = momentum, .affine = affine, .track_running_stats = track});
      },
      "name"_a, "x"_a, "eps"_a = 1e-5, "momentum"_a = 0.1, "affine"_a = true, "track_running_stats"_a = true,
      "As torch.nn.BatchNorm2d.");
  builder.def(
      "group_norm",
      [](Builder& self, const std::string& name, Node x, std::int64_t num_groups, double eps, bool affine) {
        return (*self).group_norm(name, x, {.groups = num_groups, .eps = eps, .affine = affine});
      },
      "name"_a, "x"_a, "num_groups"_a, "eps"_a = 1e-5, "affine"_a = true, "As torch.nn.GroupNorm.");
  builder.def(
      "layer_norm",
      [](Builder& self, const std::string& name, Node x, double eps, bool affine) {
        return (*self).layer_norm(name, x, {.eps = eps, .affine = affine});
      },
      "name"_a, "x"_a, "eps"_a = 1e-5, "affine"_a = true,
      "Normalises each pixel over its channels: torchvision's LayerNorm2d, torch.nn.LayerNorm(C) on (N, H, W, C).");
  builder.def(
      "instance_norm2d",
      [](Builder& self, const std::string& name, Node x, double eps, bool affine) {
        return (*self).instance_norm2d(name, x, {.eps = eps, .affine = affine});
      },
      "name"_a, "x"_a, "eps"_a = 1e-5, "affine"_a = false, "As torch.nn.InstanceNorm2d.");
}

void bind_pools(nb::class_<Builder>& builder) {
  using MaybeHW = std::optional<dp::HW>;
  builder.def(
      "max_pool2d",
      [](Builder& self, Node x, dp::HW kernel_size, MaybeHW stride, dp::HW padding, dp::HW dilation, bool ceil_mode) {
        return (*self).max_pool2d(x, {.kernel = kernel_size,
                                      .stride = stride,
                                      .padding = padding,
                                      .dilation = dilation,
                                      .ceil_mode = ceil_mode});
      },
      "x"_a, "kernel_size"_a, "stride"_a = nb::none(), "padding"_a = dp::HW(0), "dilation"_a = dp::HW(1),
      "ceil_mode"_a = false, "As torch.nn.MaxPool2d.");
  builder.def(
      "avg_pool2d",
      [](Builder& self, Node x, dp::HW kernel_size, MaybeHW stride, dp::HW padding) {
        return (*self).avg_pool2d(x, {.kernel = kernel_size, .stride = stride, .padding = padding});
      },
      "x"_a, "kernel_size"_a, "stride"_a = nb::none(), "padding"_a = dp::HW(0), "As torch.nn.AvgPool2d.");
  builder.def(
      "adaptive_avg_pool2d",
      [](Builder& self, Node x, dp::HW output) { return (*self).adaptive_avg_pool2d(x, output); }, "x"_a,
      "output_size"_a, "As torch.nn.AdaptiveAvgPool2d.");
  builder.def(
      "global_avg_pool2d", [](Builder& self, Node x) { return (*self).global_avg_pool2d(x); }, "x"_a,
      "The mean of each channel: (C, 1, 1).");
  builder.def(
      "upsample",
      [](Builder& self, Node x, MaybeHW size, std::optional<double> scale_factor, const std::string& mode,
         bool corners) {
        return (*self).upsample(x, {.size = size,
                                    .scale_factor = scale_factor,
                                    .mode = choose<dp::Upsample::Mode>("mode", mode, {"nearest", "bilinear"}),
                                    .align_corners = corners});
      },
      "x"_a, "size"_a = nb::none(), "scale_factor"_a = nb::none(), "mode"_a = "nearest", "align_corners"_a = false,
      "As torch.nn.Upsample.");
  builder.def(
      "zero_pad2d",
      [](Builder& self, Node x, const std::variant<int, std::tuple<int, int, int, int>>& padding) {
        if (const int* all = std::get_if<int>(&padding)) return (*self).zero_pad2d(x, {*all, *all, *all, *all});
        const auto [left, right, top, bottom] = std::get<1>(padding);
        return (*self).zero_pad2d(x, {left, right, top, bottom});
      },
      "x"_a, "padding"_a, "As torch.nn.ZeroPad2d: one number, or (left, right, top, bottom).");
}

void bind_elementwise(nb::class_<Builder>& builder) {
  builder.def(
      "relu", [](Builder& self, Node x) { return (*self).relu(x); }, "x"_a, "As torch.nn.ReLU.");
  builder.def(
      "activation",
      [](Builder& self, Node x, const std::string& function, const nb::kwargs& parameters) {
        return (*self).activation(x, function_named(function, parameters));
      },
      "x"_a, "function"_a, "parameters"_a,
      "A function of each element: relu6, leaky_relu (negative_slope=0.01), elu (alpha=1), sigmoid, hardsigmoid, tanh, "
      "silu, hardswish, gelu, gelu_tanh or times (factor=1).");
  builder.def(
      "prelu",
      [](Builder& self, const std::string& name, Node x, std::int64_t num_parameters, float init) {
        return (*self).prelu(name, x, {.num_parameters = num_parameters, .init = init});
      },
      "name"_a, "x"_a, "num_parameters"_a = 1, "init"_a = 0.25f, "As torch.nn.PReLU.");
  builder.def(
      "softmax", [](Builder& self, Node x) { return (*self).softmax(x); }, "x"_a,
      "Over the channels of each pixel, or over the features.");
  builder.def(
      "scale",
      [](Builder& self, const std::string& name, Node x, float value) { return (*self).scale(name, x, value); },
      "name"_a, "x"_a, "value"_a = 1.0f, "Multiplies each channel by a trained number.");
  builder.def(
      "add", [](Builder& self, Node a, Node b) { return (*self).add(a, b); }, "a"_a, "b"_a, "a + b.");
  builder.def(
      "subtract", [](Builder& self, Node a, Node b) { return (*self).subtract(a, b); }, "a"_a, "b"_a, "a - b.");
  builder.def(
      "multiply", [](Builder& self, Node a, Node b) { return (*self).multiply(a, b); }, "a"_a, "b"_a,
      "a * b. One of them may have one value for each channel or for each pixel of the other.");
  builder.def(
      "concat", [](Builder& self, const std::vector<Node>& parts) { return (*self).concat(parts); }, "parts"_a,
      "Joins tensors along their channels, or features.");
  builder.def(
      "slice",
      [](Builder& self, Node x, std::int64_t first, std::int64_t count) { return (*self).slice(x, first, count); },
      "x"_a, "first"_a, "count"_a, "Channels or features first to first + count - 1.");
  builder.def(
      "channel_shuffle", [](Builder& self, Node x, std::int64_t groups) { return (*self).channel_shuffle(x, groups); },
      "x"_a, "groups"_a, "As torch.nn.ChannelShuffle.");
  builder.def(
      "dropout", [](Builder& self, const std::string& name, Node x, float p) { return (*self).dropout(name, x, p); },
      "name"_a, "x"_a, "p"_a = 0.5f, "As torch.nn.Dropout.");
  builder.def(
      "dropout2d",
      [](Builder& self, const std::string& name, Node x, float p) { return (*self).dropout2d(name, x, p); }, "name"_a,
      "x"_a, "p"_a = 0.5f, "As torch.nn.Dropout2d: whole channels.");
  builder.def(
      "stochastic_depth",
      [](Builder& self, const std::string& name, Node x, float p) { return (*self).stochastic_depth(name, x, p); },
      "name"_a, "x"_a, "p"_a, "As torchvision's StochasticDepth with mode 'row': whole samples.");
  builder.def(
      "flatten", [](Builder& self, Node x) { return (*self).flatten(x); }, "x"_a, "(C, H, W) to (C*H*W).");
  builder.def(
      "reshape",
      [](Builder& self, Node x, const std::vector<std::int64_t>& sizes) { return (*self).reshape(x, sizes); }, "x"_a,
      "sizes"_a, "Each sample to (C, H, W) or (features). One size may be -1.");
}

}  // namespace

void bind_builder(nb::module_& m) {
  nb::class_<Node>(m, "Node", "The output of a layer in a ModelBuilder.");
  nb::class_<Builder> builder(
      m, "ModelBuilder",
      "Builds a network layer by layer. name is the layer's PyTorch module path, x its input. An "
      "error names the layer.\n\nSizes are one number or a pair, height first.");
  builder.def(nb::init<const std::string&, const dp::Shape&>(), "name"_a, "input"_a,
              "input: the shape of a sample, (C, H, W) or (features).");
  builder.def(
      "input", [](Builder& self) { return (*self).input(); }, "The input of the network.");
  builder.def("build", &Builder::build, "output"_a,
              "The network. output: the node added last. The builder cannot be used afterwards.");
  bind_convolutions(builder);
  bind_norms(builder);
  bind_pools(builder);
  bind_elementwise(builder);
}

}  // namespace dp_python
